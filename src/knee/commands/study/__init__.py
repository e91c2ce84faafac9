"""The paper's experiments on the simulator, and the page about them."""
