"""What whoever works on the client needs beside it; none of it is shipped."""
