"""One round of the wheel: gather, reward, update, measure, promote or hold. Start at `rounds.run`."""
