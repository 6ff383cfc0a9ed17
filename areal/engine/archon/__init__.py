"""Training engine over many processes: data, tensor, context, expert and pipeline parallelism, as one process would."""
