// FST files read without OpenFst: the same FSTs, and nothing that a file says is believed.
#include "lattice_bpd/base/fst_bytes.h"

#include <fst/const-fst.h>
#undef CHECK  // OpenFst's own; doctest's comes below
#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/base/use_openfst.h"
#include "lattice_bpd/lattice/acceptor.h"
#include "lattice_bpd/lm/lm_from_fst.h"
#include "lattice_bpd/lm/lm_fst.h"
#include "lm_examples.h"

namespace lattice_bpd {
namespace {

using StdFst = fst::VectorFst<fst::StdArc>;

// 0 -a 0.5-> 1 -b 1-> 2 (2), 0 -epsilon-> 2
StdFst ExampleFst() {
  StdFst out;
  for (int state = 0; state < 3; ++state) out.AddState();
  out.SetStart(0);
  out.AddArc(0, fst::StdArc(1, 1, 0.5f, 1));
  out.AddArc(0, fst::StdArc(0, 0, 0.0f, 2));
  out.AddArc(1, fst::StdArc(2, 2, 1.0f, 2));
  out.SetFinal(2, 2.0f);
  return out;
}

// The arcs and final weights, state by state.
std::string Describe(const fst::Fst<fst::StdArc>& fst, int num_states) {
  std::string text = StrCat("start ", fst.Start());
  for (int state = 0; state < num_states; ++state) {
    text += StrCat("; ", fst.Final(state).Value());
    for (fst::ArcIterator<fst::Fst<fst::StdArc>> arcs(fst, state); !arcs.Done(); arcs.Next()) {
      const fst::StdArc& arc = arcs.Value();
      text += StrCat(" ", arc.ilabel, ":", arc.olabel, "/", arc.weight.Value(), ">", arc.nextstate);
    }
  }
  return text;
}

std::string MessageOf(const std::string& bytes) {
  try {
    ReadStdFst(bytes);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

// The bytes with `value` at an offset from the end of what follows `mark`.
template <typename T>
std::string With(std::string bytes, std::size_t at, T value) {
  bytes.replace(at, sizeof value, reinterpret_cast<const char*>(&value), sizeof value);
  return bytes;
}

// Offsets in an FST file of ExampleFst: magic 4, "vector" 4 + 6, "standard" 4 + 8, version 4,
// flags 4, properties 8, start 8, states 8, arcs 8. Type "const" has a byte less.
constexpr std::size_t kNumStates = 50;
constexpr std::size_t kNumArcs = 58;
constexpr std::size_t kBody = 66;

TEST_CASE("fst bytes: what OpenFst wrote, vector, const and aligned const") {
  const StdFst example = ExampleFst();
  const std::string expected = Describe(example, 3);
  CHECK(Describe(ReadStdFst(FstToBytes(example)), 3) == expected);
  const fst::ConstFst<fst::StdArc> constant(example);
  CHECK(Describe(ReadStdFst(FstToBytes(constant)), 3) == expected);
  std::ostringstream aligned;
  fst::FstWriteOptions options("bytes");
  options.align = true;
  REQUIRE(constant.Write(aligned, options));
  CHECK(Describe(ReadStdFst(aligned.str()), 3) == expected);
  CHECK(Describe(ReadStdFst(FstToBytes(StdFst())), 0) == "start -1");
}

TEST_CASE("fst bytes: a const FST's states may not share or leave its arcs") {
  const std::string good = FstToBytes(fst::ConstFst<fst::StdArc>(ExampleFst()));
  const std::size_t first = kBody - 1;  // of the states, 20 bytes each: final, position, number, ..
  REQUIRE(MessageOf(good).empty());
  CHECK(MessageOf(With(good, first + 4, 0xffffffffu)) == "is cut or altered");
  CHECK(MessageOf(With(good, first + 8, 0x7fffffffu)) == "is cut or altered");
  CHECK(MessageOf(With(good, first + 28, 3u)) == "is cut or altered");  // state 1 takes all arcs
  CHECK(MessageOf(With(good, kNumArcs - 1, std::int64_t{1} << 60)) == "is cut or altered");
  CHECK(MessageOf(With(good, kNumStates - 1, std::int64_t{1} << 60)) == "is cut or altered");
}

TEST_CASE("fst bytes: altered acceptors and LMs are refused or read, whatever byte it is") {
  UseOpenFst();
  TemporaryFolder folder;
  const std::string path = folder.File("lm.fst");
  FstImportOptions options;
  options.vocab_size = 3;
  const auto lm = ExampleLm();
  for (const bool const_fst : {false, true}) {
    LmExportOptions as;
    as.const_fst = const_fst;
    const std::string good = LmToFstBytes(*lm, lm->StateOfContext({}, true), as);
    for (std::size_t at = 0; at < good.size(); ++at) {
      for (const char value : {'\0', '\x7f', '\xff'}) {
        std::string bytes = good;
        bytes[at] = value;
        WriteBytes(path, bytes);
        INFO("byte ", at, " value ", static_cast<int>(value));
        try {
          const auto read = ReadLmFst(path, options);
          read->Query(LmState{}, 0);
        } catch (const FormatError&) {
        } catch (const ValueError&) {
        }
        try {
          ReadAcceptor(bytes);
        } catch (const ValueError&) {
        }
      }
    }
  }
}

}  // namespace
}  // namespace lattice_bpd
