"""Subcommands of `interp`: each module parses options, calls a room, saves and prints."""

GROUPS = {
    "Find heads": {
        "heads": "find out what every attention head does: table and figures",
        "prompts": "score every head on your own prompts",
        "sweep": "every head of many models or checkpoints, in one folder",
        "serve": "a page that answers typed prompts",
        "gallery": "show all heads on a page, or draw them for a paper",
    },
    "Test what they do": {
        "verify": "remove the heads of each label, compare with random heads",
        "patch": "what each head does in a task or on your own pairs of prompts",
        "circuit": "find the edges of a model that carry a task",
        "sinks": "the loss without the first tokens in the cache",
        "compare": "induction circuits built by hand, learned, and real",
    },
    "Small models": {
        "build": "build a model with an induction circuit by hand",
        "train": "train a two-layer model until it finds induction",
    },
    "Validate and learn": {
        "accuracy": "how often labels are right, on planted heads",
        "sensitivity": "which labels change with seed, length, BOS or number format",
        "numbers": "measure every number of docs/attention.md",
        "lab": "an interactive page that explains attention",
        "doctor": "versions, devices, cache and default model, for a bug report",
    },
}
"""Subcommands with what they do, by heading; each is the module of that name in this room."""
