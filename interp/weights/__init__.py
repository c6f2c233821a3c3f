"""What heads read and write: folded weights, composition, direct effects."""
