"""What a repository does with packages, found by reading its text; nothing is imported or run.

index = index_repository(Path("."), ["vllm", "megatron.core"], cache=folder)
for use in index.uses():
    ...

checkout     files, module names, plain-text search
scan         one file: values, bindings, calls, conditions as numbers in tables        -> facts.FileFacts
config_files targets and scripts that configuration files name
link         names followed across files; facts become uses                            -> uses.Use
"""

from tooling.upgrade.usage.index import UsageIndex, index_repository

__all__ = ["UsageIndex", "index_repository"]
