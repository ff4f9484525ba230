// The three errors the core throws. The binding maps them to the Python exceptions people expect:
// ValueError -> ValueError, IoError -> OSError, FormatError -> lattice_bpd.FormatError.
//
// A message states where, what was found, what was expected and what to do.
#ifndef LATTICE_BPD_BASE_ERRORS_H_
#define LATTICE_BPD_BASE_ERRORS_H_

#include <sstream>
#include <stdexcept>
#include <string>

namespace lattice_bpd {

// An argument that cannot be used.
class ValueError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// A file whose contents are wrong, cut or altered.
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The operating system refused; carries its errno and the path.
class IoError : public std::runtime_error {
 public:
  IoError(int error_number, const std::string& path, const std::string& message)
      : std::runtime_error(message), error_number_(error_number), path_(path) {}
  int error_number() const { return error_number_; }
  const std::string& path() const { return path_; }

 private:
  int error_number_;
  std::string path_;
};

// StrCat("slot ", 3, " has ", n): the message as one string.
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_ERRORS_H_
