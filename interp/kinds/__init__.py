"""What a kind of head is, and how much of it a head is: targets, mass, labels."""
