"""Training of models that have no family of ours: any `AutoModelForCausalLM`, behind the interface engines know."""
