//! From a Kubefile to an image: plan, steps, cache, output. Must not print or read the environment.
