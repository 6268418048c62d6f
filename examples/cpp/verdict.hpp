// What the examples share: the verdict.
#pragma once
#include <iostream>
#include <sstream>
#include <string>

#include "oxccl.hpp"

// Says whether the result is right; the program's status.
inline int verdict(bool right, int rank, int nranks, const std::string &what) {
  std::ostringstream line; // in one piece: the ranks share the terminal
  line << "rank " << rank << " of " << nranks << ": " << what << (right ? " verified\n" : " WRONG\n");
  std::cout << line.str();
  return right ? 0 : 2;
}
