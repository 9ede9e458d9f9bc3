"""The graph of a model as it ran: its module calls, and the tensors that flowed between them."""
