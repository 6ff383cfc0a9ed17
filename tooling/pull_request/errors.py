"""What this command refuses besides the errors of the kit.

ToolError
+-- TitleError           10   message       the title is no header of a commit
+-- RemoteError          11   remote        the remote cannot be reached, or refused the push
+-- ServiceError         12   pull-request  `gh` refused to make or change the pull request
"""

from __future__ import annotations

from tooling.cli.errors import ToolError


class TitleError(ToolError):
    """The title does not conform to the rules for commits."""

    exit_code = 10
    code = "message"


class RemoteError(ToolError):
    """The remote cannot be reached, or it refused the push; nothing there has changed."""

    exit_code = 11
    code = "remote"


class ServiceError(ToolError):
    """The branch is pushed, and the pull request could not be made or changed."""

    exit_code = 12
    code = "pull-request"
