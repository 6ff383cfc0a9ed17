"""Asks detect-secrets about the lines that a change adds: credentials in the forms of two dozen services.

    places, note = scan(comparison)

It gets single lines and no settings of the repository, and asks no service whether a key works. Guesses by entropy and
by the names of variables are left to a rule of ours (rules/security.py), which is stricter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tooling.review.records import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.review.repository.comparison import Comparison

PLUGINS: Final = (
    "AWSKeyDetector",
    "ArtifactoryDetector",
    "AzureStorageKeyDetector",
    "CloudantDetector",
    "DiscordBotTokenDetector",
    "GitHubTokenDetector",
    "GitLabTokenDetector",
    "IbmCosHmacDetector",
    "JwtTokenDetector",
    "MailchimpDetector",
    "NpmDetector",
    "OpenAIDetector",
    "PrivateKeyDetector",
    "PypiTokenDetector",
    "SendGridDetector",
    "SlackDetector",
    "SquareOAuthDetector",
    "StripeDetector",
    "TelegramBotTokenDetector",
    "TwilioKeyDetector",
)
MOST_LINES: Final = 20_000
"""Added lines that are looked at, at a few microseconds each."""
LONGEST: Final = 2_000
"""Characters of a line; longer ones are data."""


def scan(comparison: Comparison) -> tuple[list[Place], str]:
    """Return where a credential was added, and why nobody looked, or not at all of it; "" when all was looked at."""
    lines = list(_added(comparison))
    if not lines:
        return [], ""
    try:
        from detect_secrets.core.scan import scan_line
        from detect_secrets.settings import transient_settings
    except ImportError:
        note = "detect-secrets is not installed: only common forms of credentials were looked for"
        return [], f"{note} (pip install 'areal[review]')"
    found: list[Place] = []
    with transient_settings({"plugins_used": [{"name": each} for each in PLUGINS]}):
        for path, number, line, before in lines[:MOST_LINES]:
            for secret in scan_line(line):
                # Of some services it returns no more than the prefix.
                value = secret.secret_value or ""
                # What was there already is not new because its line is.
                value = value if len(value) > 8 else line.strip()
                if value not in before and "example" not in line.lower():
                    found.append(Place(path, number, f"looks like a credential ({secret.type})"))
                    break
    left = len(lines) - MOST_LINES
    return found, f"{left} added lines were not looked at for credentials: more than {MOST_LINES}" if left > 0 else ""


def _added(comparison: Comparison) -> Iterator[tuple[str, int, str, str]]:
    """Yield path, number and text of added lines, and what the file held before."""
    for file in comparison.files:
        text = comparison.head.text(file.path) if file.added else None
        before = (comparison.base.text(file.old_path) or "") if text is not None and file.status != "A" else ""
        for number, line in enumerate(text.split("\n") if text is not None else (), 1):
            if number in file.added and 12 < len(line) < LONGEST:
                yield file.path, number, line, before
