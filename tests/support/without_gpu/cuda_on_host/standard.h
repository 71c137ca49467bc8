// What the others need of C++, in a file that is compiled once.
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>
