/* Runs a program and prints the most memory it had at a time, in KiB: ru_maxrss of wait4(2).

   Linux counts in what the process had before it became the program, by which a child of a large parent is as large as
   its parent (exec_mmap() in fs/exec.c keeps the old memory's high-water mark). This one is static and small, so that
   what it prints is the program's. */
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    int status;
    struct rusage usage;
    if (count < 2)
        return 2;
    pid_t child = vfork();
    if (child == 0) {
        execv(arguments[1], arguments + 1);
        _exit(127);
    }
    if (child < 0 || wait4(child, &status, 0, &usage) != child || status != 0)
        return 1;
    fprintf(stderr, "%ld\n", usage.ru_maxrss);
    return 0;
}
