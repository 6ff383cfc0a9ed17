"""An audit as text for people, a JSON object, SARIF for code review, and Markdown for a pull request."""
