"""What agent and controller share: messages, keys, the head log, manifests, the store. It imports neither of them."""
