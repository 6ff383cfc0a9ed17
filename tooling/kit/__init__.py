"""What every generator and auditor stands on: plans, transactions, edits of source text, templates, receipts.

Mechanism only; what a command does with it is said in `tooling.new` and its siblings.
"""
