/* What starting a static program takes, and nothing else. */
int main(void) { return 0; }
