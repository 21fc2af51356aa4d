"""One whole turn of the wheel on a real small language model, with simulated users: `thumbwheel demo`."""
