#include "lattice_bpd/base/fst_bytes.h"

#include <cstdint>
#include <cstring>
#include <utility>

namespace lattice_bpd {
namespace {

using StdFst = fst::VectorFst<fst::StdArc>;

constexpr std::int32_t kFstMagic = 2125659606;
constexpr std::int32_t kSymbolTableMagic = 2125658996;
constexpr std::int32_t kVectorVersion = 2;
constexpr std::int32_t kAlignedConstVersion = 1;
constexpr std::int32_t kConstVersion = 2;
constexpr std::uint64_t kAlignment = 16;
constexpr std::uint64_t kArcBytes = 16;
constexpr std::uint64_t kConstStateBytes = 20;

[[noreturn]] void FailAltered() { throw FormatError("is cut or altered"); }

// Takes values off bytes. Throws where they do not suffice.
class ByteReader {
 public:
  explicit ByteReader(const std::string& bytes) : bytes_(bytes) {}

  std::uint64_t left() const { return bytes_.size() - at_; }

  template <typename T>
  T Take() {
    T value;
    const std::uint64_t from = at_;
    Skip(sizeof value);
    std::memcpy(&value, bytes_.data() + from, sizeof value);
    return value;
  }

  std::string TakeString() {
    const auto size = static_cast<std::uint64_t>(Take<std::int32_t>());  // below 0: too many
    const std::uint64_t from = at_;
    Skip(size);
    return bytes_.substr(from, size);
  }

  void Skip(std::uint64_t size) {
    if (size > left()) FailAltered();
    at_ += size;
  }

  void Align() { Skip((kAlignment - at_ % kAlignment) % kAlignment); }

 private:
  const std::string& bytes_;
  std::uint64_t at_ = 0;
};

struct Header {
  FstKind kind;
  std::int32_t version = 0;
  std::int32_t flags = 0;
  std::int64_t start = 0;
  std::int64_t num_states = 0;
  std::int64_t num_arcs = 0;
};

Header TakeHeader(ByteReader* in) {
  if (in->Take<std::int32_t>() != kFstMagic) FailAltered();
  Header header;
  header.kind.fst_type = in->TakeString();
  header.kind.arc_type = in->TakeString();
  header.version = in->Take<std::int32_t>();
  header.flags = in->Take<std::int32_t>();
  in->Take<std::uint64_t>();  // properties: recomputed when they are needed
  header.start = in->Take<std::int64_t>();
  header.num_states = in->Take<std::int64_t>();
  header.num_arcs = in->Take<std::int64_t>();
  return header;
}

SymbolNames TakeSymbolTable(ByteReader* in) {
  if (in->Take<std::int32_t>() != kSymbolTableMagic) FailAltered();
  in->TakeString();
  in->Take<std::int64_t>();  // the next free key
  const auto size = in->Take<std::int64_t>();
  SymbolNames names;
  for (std::int64_t i = 0; i < size; ++i) {
    std::string name = in->TakeString();
    names.emplace_back(in->Take<std::int64_t>(), std::move(name));
  }
  return names;
}

void TakeArc(ByteReader* in, fst::StdArc::StateId state, StdFst* out) {
  const auto ilabel = in->Take<std::int32_t>();
  const auto olabel = in->Take<std::int32_t>();
  const auto weight = in->Take<float>();
  const auto next = in->Take<std::int32_t>();
  out->AddArc(state, fst::StdArc(ilabel, olabel, weight, next));
}

void TakeArcs(ByteReader* in, std::uint64_t num_arcs, fst::StdArc::StateId state, StdFst* out) {
  if (num_arcs > in->left() / kArcBytes) FailAltered();
  out->ReserveArcs(state, num_arcs);
  for (std::uint64_t i = 0; i < num_arcs; ++i) TakeArc(in, state, out);
}

// Each state is followed by its arcs; -1 states: up to the end of the bytes.
void TakeVector(const Header& header, ByteReader* in, StdFst* out) {
  for (std::int64_t i = 0; i != header.num_states; ++i) {
    if (header.num_states < 0 && in->left() == 0) return;
    const auto state = out->AddState();
    out->SetFinal(state, in->Take<float>());
    TakeArcs(in, in->Take<std::uint64_t>(), state, out);
  }
}

// All states, then all arcs, which the states point into.
void TakeConst(const Header& header, ByteReader* in, StdFst* out) {
  const bool aligned =
      header.version == kAlignedConstVersion || (header.flags & fst::FstHeader::IS_ALIGNED) != 0;
  if (aligned) in->Align();
  ByteReader states = *in;
  const auto num_states = static_cast<std::uint64_t>(header.num_states);
  const auto num_arcs = static_cast<std::uint64_t>(header.num_arcs);
  if (num_states > in->left() / kConstStateBytes) FailAltered();
  in->Skip(num_states * kConstStateBytes);
  if (aligned) in->Align();
  if (num_arcs > in->left() / kArcBytes) FailAltered();
  std::uint64_t arcs_seen = 0;  // or many states could share them, and take memory without end
  for (std::uint64_t i = 0; i < num_states; ++i) {
    const auto state = out->AddState();
    out->SetFinal(state, states.Take<float>());
    const std::uint64_t first = states.Take<std::uint32_t>();
    const std::uint64_t size = states.Take<std::uint32_t>();
    states.Take<std::uint64_t>();  // numbers of epsilons
    arcs_seen += size;
    if (first + size > num_arcs || arcs_seen > num_arcs) FailAltered();
    ByteReader arcs = *in;
    arcs.Skip(first * kArcBytes);
    TakeArcs(&arcs, size, state, out);
  }
}

void CheckStates(const StdFst& fst, std::int64_t start) {
  const auto exists = [&](std::int64_t state) { return 0 <= state && state < fst.NumStates(); };
  if (start != fst::kNoStateId && !exists(start)) {
    throw FormatError(StrCat("has start state ", start, " of ", fst.NumStates(), ": altered"));
  }
  for (fst::StdArc::StateId state = 0; state < fst.NumStates(); ++state) {
    for (fst::ArcIterator<StdFst> arcs(fst, state); !arcs.Done(); arcs.Next()) {
      const auto next = arcs.Value().nextstate;
      if (exists(next)) continue;
      throw FormatError(StrCat("has an arc from state ", state, " to state ", next, " of ",
                               fst.NumStates(), ": altered"));
    }
  }
}

}  // namespace

std::optional<FstKind> FstKindOf(const std::string& bytes) {
  ByteReader in(bytes);
  try {
    return TakeHeader(&in).kind;
  } catch (const FormatError&) {
    return std::nullopt;
  }
}

StdFst ReadStdFst(const std::string& bytes, SymbolNames* names) {
  ByteReader in(bytes);
  const Header header = TakeHeader(&in);
  const bool is_vector = header.kind.fst_type == "vector" && header.version == kVectorVersion;
  const bool is_const = header.kind.fst_type == "const" &&
                        (header.version == kAlignedConstVersion || header.version == kConstVersion);
  if (header.kind.arc_type != "standard" || !(is_vector || is_const)) {
    throw FormatError(StrCat("is of type \"", header.kind.fst_type, "\", version ", header.version,
                             ", over arcs of type \"", header.kind.arc_type,
                             "\"; expected type vector or const over standard arcs"));
  }
  if (header.num_states < -1) FailAltered();
  for (const int symbols : {fst::FstHeader::HAS_ISYMBOLS, fst::FstHeader::HAS_OSYMBOLS}) {
    if ((header.flags & symbols) == 0) continue;
    SymbolNames read = TakeSymbolTable(&in);  // those of output labels come last
    if (names != nullptr) *names = std::move(read);
  }
  StdFst out;
  is_vector ? TakeVector(header, &in, &out) : TakeConst(header, &in, &out);
  CheckStates(out, header.start);
  out.SetStart(static_cast<fst::StdArc::StateId>(header.start));
  return out;
}

}  // namespace lattice_bpd
