"""What an operator does against the loss of a controller: back up, restore, adopt a store of which the database is lost."""
