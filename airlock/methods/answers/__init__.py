"""What leaves are answers to queries, or one head that answers any number of them."""
