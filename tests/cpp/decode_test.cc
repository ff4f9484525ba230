// Where texts repeat themselves.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/decode/repeats.h"
#include "lattice_bpd/decode/suffix_index.h"

namespace lattice_bpd {
namespace {

TEST_CASE("matches are those that a search by hand finds") {
  using Ids = std::vector<std::int64_t>;
  std::mt19937 random(1);
  for (const std::size_t longest : {1u, 3u, 8u}) {
    SuffixIndex index(longest);
    Ids text;
    for (int step = 0; step < 200; ++step) {
      Ids path(random() % 3);
      for (auto& token : path) token = random() % 3;
      Ids whole = text;
      whole.insert(whole.end(), path.begin(), path.end());
      Match wanted;
      for (std::size_t size = 1; size <= std::min(longest, whole.size()); ++size) {
        for (std::size_t end = size; end < text.size(); ++end) {
          if (std::equal(whole.end() - size, whole.end(), text.begin() + end - size)) {
            wanted = {end, size};
          }
        }
      }
      const Match match = index.Find(path);
      CHECK(match.size == wanted.size);
      CHECK(match.position == wanted.position);
      if (match.size > 0) {
        for (const std::int64_t token : index.Follow(match.position, 7, path)) {
          CHECK(token == whole[whole.size() - (text.size() + path.size() - match.position)]);
          whole.push_back(token);
        }
      }
      text.push_back(random() % 3);
      index.Append(text.back());
    }
    CHECK(index.tokens() == text);
    CHECK_THROWS_AS(index.Follow(200, 1, {}), ValueError);
  }
  CHECK_THROWS_AS(SuffixIndex(0), ValueError);
}

TEST_CASE("trees go on where the text repeats itself") {
  const std::vector<std::int64_t> text = {1, 2, 3, 1, 2, 3, 1};
  RepeatingText repeating;
  repeating.Append(text);
  PrefixTree tree(1, 3);  // 2 with 0.6, 7 with 0.2
  tree.Add(0, 2, std::log(0.6F));
  tree.Add(0, 7, std::log(0.2F));
  const auto extended = repeating.Extend(tree, 2, 40, 4);
  REQUIRE(extended);
  CHECK(extended->token_ids() == (std::vector<std::int64_t>{1, 2, 3, 7, 1}));
  CHECK(extended->parents() == (std::vector<NodeNumber>{-1, 0, 1, 0, 2}));
  CHECK(extended->nodes()[2].log_prob == doctest::Approx(std::log(0.3)));
  CHECK_FALSE(repeating.Extend(tree, 2, 1, 2));  // no remaining depth
  CHECK_FALSE(repeating.Extend(tree, 2, 0, 2));
  CHECK_FALSE(RepeatingText().Extend(tree, 2, 40, 4));
  PrefixTree unknown(1, 2);
  unknown.Add(0, 2);
  CHECK_THROWS_AS(repeating.Extend(unknown, 2, 40, 4), ValueError);
  CHECK_THROWS_AS(repeating.Extend(PrefixTree(), 2, 40, 4), ValueError);
}

}  // namespace
}  // namespace lattice_bpd
