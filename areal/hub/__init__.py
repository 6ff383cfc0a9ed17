"""The Hugging Face hub: names with pinned revisions instead of folders, and folders that are published.

names        what `org/name@revision` means, and the commit behind it
download     the files of such a name, in the local cache
publishing   a folder that becomes a repository
"""
