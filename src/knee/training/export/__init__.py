"""A plan as the configuration of Megatron-LM, torchtitan or `knee train`."""
