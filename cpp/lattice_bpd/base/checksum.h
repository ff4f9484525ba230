// A fast 64-bit checksum against damage, not against malice.
//
// Four lanes, each h = rotate((h ^ word) * odd constant): every step is a bijection of h and of
// the word, so that a change confined to one 8-byte word always changes the result.
#ifndef LATTICE_BPD_BASE_CHECKSUM_H_
#define LATTICE_BPD_BASE_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

namespace lattice_bpd {

std::uint64_t Checksum(const void* data, std::size_t size);

}  // namespace lattice_bpd

#endif  // LATTICE_BPD_BASE_CHECKSUM_H_
