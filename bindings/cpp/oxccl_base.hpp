// What oxccl.hpp is built on: errors and results, handles with an owner, types of elements. To be
// included by that. SPDX: MIT OR Apache-2.0.
#ifndef OXCCL_BASE_HPP_
#define OXCCL_BASE_HPP_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "oxccl.h"

#if !defined(OXCCL_NO_EXCEPTIONS) && !defined(__cpp_exceptions)
#define OXCCL_NO_EXCEPTIONS 1
#endif

namespace oxccl {
// Objects of both kinds may be linked into one program.
#ifdef OXCCL_NO_EXCEPTIONS
inline namespace returning {
#define OXCCL_FAIL(error) return (error)
#else
inline namespace throwing {
#define OXCCL_FAIL(error) throw(error)
#endif

// What failed: ncclResult_t, text, and where known the ranks.
class error : public std::runtime_error {
 public:
  // Of the calling thread's last call, which returned `code`.
  static error last(ncclResult_t code) {
    oxcclErrorInfo_t info = OXCCL_ERROR_INFO_INITIALIZER;
    if (oxcclLastError(&info) != ncclSuccess || info.code != code) {
      info = OXCCL_ERROR_INFO_INITIALIZER;
      return error(code, ncclGetErrorString(code), info);
    }
    return error(code, info.text, info);
  }
  // Why a communicator failed with `code`.
  static error of(ncclComm_t comm, ncclResult_t code) {
    oxcclErrorInfo_t info = OXCCL_ERROR_INFO_INITIALIZER;
    if (oxcclCommLastError(comm, &info) != ncclSuccess) return last(code);
    return error(code, info.text, info);
  }
  // A length that does not fit the others of the call.
  static error length(const char *function, const char *argument, std::size_t got,
                      std::size_t expected) {
    oxcclErrorInfo_t none = OXCCL_ERROR_INFO_INITIALIZER;
    return error(ncclInvalidArgument,
                 std::string(function) + ": " + argument + " has " + std::to_string(got) +
                     " elements; expected " + std::to_string(expected),
                 none);
  }

  ncclResult_t code() const { return code_; }
  // The rank that reports; -1 outside a communicator.
  int rank() const { return rank_; }
  // The rank at fault or waited for; -1 when unknown, as where the ranks' calls differ.
  int peer() const { return peer_; }

 private:
  error(ncclResult_t code, const std::string &text, const oxcclErrorInfo_t &info)
      : std::runtime_error(text), code_(code), rank_(info.rank), peer_(info.peer) {}
  ncclResult_t code_;
  int rank_, peer_;
};

#ifdef OXCCL_NO_EXCEPTIONS
// A value, or the error in its place.
template <class T>
class [[nodiscard]] result {
 public:
  result(T value) : value_(std::move(value)) {}
  result(oxccl::error error) : error_(std::move(error)) {}
  explicit operator bool() const { return value_.has_value(); }
  // Only where there is one.
  T &operator*() { return *value_; }
  T *operator->() { return &*value_; }
  // Only where there is no value.
  const oxccl::error &error() const { return *error_; }

 private:
  std::optional<T> value_;
  std::optional<oxccl::error> error_;
};
template <>
class [[nodiscard]] result<void> {
 public:
  result() = default;
  result(oxccl::error error) : error_(std::move(error)) {}
  explicit operator bool() const { return !error_.has_value(); }
  const oxccl::error &error() const { return *error_; }

 private:
  std::optional<oxccl::error> error_;
};
#else
template <class T>
using result = T;
#endif

namespace detail {
// A communicator that does not block answers that it is at work.
inline bool failed(ncclResult_t code) { return code != ncclSuccess && code != ncclInProgress; }

inline result<void> check(ncclResult_t code) {
  if (failed(code)) OXCCL_FAIL(error::last(code));
  return result<void>();
}

template <class F>
result<std::invoke_result_t<F>> made(ncclResult_t code, F make) {
  if (failed(code)) OXCCL_FAIL(error::last(code));
  return make();
}

inline result<bool> finished(ncclResult_t code) {
  if (failed(code)) OXCCL_FAIL(error::last(code));
  return code == ncclSuccess;
}

// A handle that is ended with its owner; errors of ending have nobody to go to.
template <class Handle, ncclResult_t (*End)(Handle)>
class owner {
 public:
  owner() = default;
  explicit owner(Handle handle) : handle_(handle) {}
  owner(owner &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  owner &operator=(owner &&other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~owner() {
    if (handle_) End(handle_);
  }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};

inline ncclResult_t end_graph(oxcclGraph_t graph) { return oxcclGraphDestroy(graph, nullptr); }
inline ncclResult_t end_executable(oxcclGraphExec_t e) { return oxcclGraphDestroy(nullptr, e); }
}  // namespace detail

// ---- Elements ----

// Types of elements that C++ has none for; the bits only.
struct float16 {
  std::uint16_t bits;
};
struct bfloat16 {
  std::uint16_t bits;
};
struct float8_e4m3 {
  std::uint8_t bits;
};
struct float8_e5m2 {
  std::uint8_t bits;
};

// The ncclDataType_t of a type; specialise it for types of your own, such as __half.
template <class T, class = void>
struct element;
template <class T>
struct element<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
  static constexpr ncclDataType_t type =
      sizeof(T) == 1   ? (std::is_signed_v<T> ? ncclInt8 : ncclUint8)
      : sizeof(T) == 4 ? (std::is_signed_v<T> ? ncclInt32 : ncclUint32)
                       : (std::is_signed_v<T> ? ncclInt64 : ncclUint64);
  static_assert(sizeof(T) != 2, "there are no 16-bit integers");
};
template <>
struct element<float> {
  static constexpr ncclDataType_t type = ncclFloat32;
};
template <>
struct element<double> {
  static constexpr ncclDataType_t type = ncclFloat64;
};
template <>
struct element<float16> {
  static constexpr ncclDataType_t type = ncclFloat16;
};
template <>
struct element<bfloat16> {
  static constexpr ncclDataType_t type = ncclBfloat16;
};
template <>
struct element<float8_e4m3> {
  static constexpr ncclDataType_t type = ncclFloat8e4m3;
};
template <>
struct element<float8_e5m2> {
  static constexpr ncclDataType_t type = ncclFloat8e5m2;
};

// Elements somewhere; std::span where there is C++20, and anything like it, will do as well.
template <class T>
class span {
 public:
  span() = default;
  span(T *data, std::size_t size) : data_(data), size_(size) {}
  T *data() const { return data_; }
  std::size_t size() const { return size_; }
  T *begin() const { return data_; }
  T *end() const { return data_ + size_; }
  T &operator[](std::size_t i) const { return data_[i]; }

 private:
  T *data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace throwing or returning
}  // namespace oxccl

#endif  // OXCCL_BASE_HPP_
