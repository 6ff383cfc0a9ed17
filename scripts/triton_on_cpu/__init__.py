"""A backend of Triton for machines without a GPU, see `setup_vllm.sh --routes`: kernels run in its interpreter.

vLLM asks for a backend named "cpu" before it uses Triton there. The package index has none; the interpreter
(TRITON_INTERPRET=1, which the set-up switches on) needs none, so that the two classes of this one are never called.
"""
