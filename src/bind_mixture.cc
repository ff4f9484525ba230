#include "bindings.h"
#include "lattice_bpd/base/errors.h"
#include "lattice_bpd/mixture/draft_lengths.h"
#include "lattice_bpd/mixture/mixture_search.h"

namespace py = pybind11;

namespace lattice_bpd {
namespace {

using Tokens = std::vector<std::int64_t>;
using Texts = std::vector<MixtureText*>;
// Keys, positions (batch,) and sharpness.
using NoiseOfTexts = std::tuple<std::vector<std::uint64_t>, std::vector<std::uint64_t>, double>;

const std::string kKindNames[] = {"heads", "lm", "text", "store", "target"};

std::shared_ptr<Mixture> MakeMixture(std::uint32_t vocab_size, bool has_heads,
                                     std::vector<std::shared_ptr<BackoffLm>> lms, bool has_text,
                                     const std::optional<std::shared_ptr<TextStore>>& store,
                                     bool has_target, double learning_rate,
                                     const std::optional<Array<double>>& theta) {
  Mixture::Options options;
  options.vocab_size = vocab_size;
  options.has_heads = has_heads;
  options.lms.assign(lms.begin(), lms.end());
  options.has_text = has_text;
  if (store) options.store = *store;
  options.has_target = has_target;
  options.learning_rate = learning_rate;
  GateWeights weights;
  if (theta) weights.assign(theta->data(), theta->data() + theta->size());
  const LongCall call;
  return std::make_shared<Mixture>(std::move(options), std::move(weights));
}

// Row `row` of candidates (batch, slots, k) and of transitions (batch, slots - 1, k, k).
std::vector<HeadCandidates> ToHeads(const std::optional<Array<TokenId>>& token_ids,
                                    const std::optional<Array<float>>& log_probs,
                                    const std::optional<Array<float>>& transitions,
                                    std::size_t batch) {
  std::vector<HeadCandidates> heads;
  if (!token_ids) return heads;
  const bool fits = token_ids->ndim() == 3 && log_probs && log_probs->ndim() == 3 &&
                    static_cast<std::size_t>(token_ids->shape(0)) == batch &&
                    log_probs->shape(0) == token_ids->shape(0) &&
                    log_probs->shape(1) == token_ids->shape(1) &&
                    log_probs->shape(2) == token_ids->shape(2);
  if (!fits) throw ValueError("mixture: token_ids and log_probs; expected both (batch, slots, k)");
  const auto slots = static_cast<std::size_t>(token_ids->shape(1));
  const auto k = static_cast<std::size_t>(token_ids->shape(2));
  const std::size_t arcs = (slots - 1) * k * k;
  if (transitions && static_cast<std::size_t>(transitions->size()) != batch * arcs) {
    throw ValueError("mixture: transitions; expected (batch, slots - 1, k, k)");
  }
  for (std::size_t row = 0; row < batch; ++row) {
    HeadCandidates of_row;
    of_row.token_ids = token_ids->data() + row * slots * k;
    of_row.log_probs = log_probs->data() + row * slots * k;
    if (transitions) of_row.transitions = transitions->data() + row * arcs;
    of_row.num_slots = static_cast<int>(slots);
    of_row.top_k = static_cast<int>(k);
    heads.push_back(of_row);
  }
  return heads;
}

// Calls allow(row, node, parent, token, tokens) -> a bool for each token.
std::vector<AllowTokens> ToAllow(const py::object& allow, std::size_t batch) {
  std::vector<AllowTokens> functions;
  for (std::size_t row = 0; row < batch; ++row) {
    functions.push_back(
        [allow, row](NodeNumber node, const PrefixTree& tree, Span<std::int64_t> token_ids) {
          const py::gil_scoped_acquire acquire;
          const DraftNode& at = tree.node(node);
          const py::object allowed =
              allow(row, node, at.parent, at.token_id, Tokens(token_ids.begin(), token_ids.end()));
          auto flags = allowed.cast<std::vector<bool>>();
          if (flags.size() != token_ids.size()) {
            throw ValueError("mixture: allow returned another number of values than tokens");
          }
          return flags;
        });
  }
  return functions;
}

std::vector<PrefixTree> SearchBatch(
    const Texts& texts, const std::vector<std::int32_t>& max_depths, int max_nodes, bool is_chain,
    const std::optional<Array<TokenId>>& token_ids, const std::optional<Array<float>>& log_probs,
    const std::optional<Array<float>>& transitions, const std::optional<Array<double>>& costs,
    const py::object& allow, const std::optional<NoiseOfTexts>& noise, int threads) {
  if (max_depths.size() != texts.size()) {
    throw ValueError("search_mixtures: max_depths; expected one for each text");
  }
  if (max_nodes < 0 || max_nodes > kMaxMixtureNodes) {
    throw ValueError(
        StrCat("search_mixtures: max_nodes is ", max_nodes, "; expected 0..", kMaxMixtureNodes));
  }
  if (costs && costs->size() != max_nodes + 1) {
    throw ValueError("search_mixtures: costs; expected one for each size 0..max_nodes");
  }
  for (py::ssize_t n = 0; costs && n < costs->size(); ++n) {
    if (!(costs->at(n) > 0.0)) throw ValueError("search_mixtures: costs; expected numbers above 0");
  }
  const auto heads = ToHeads(token_ids, log_probs, transitions, texts.size());
  std::vector<AllowTokens> functions;
  if (!allow.is_none()) functions = ToAllow(allow, texts.size());
  BatchLimits limits;
  limits.max_nodes = max_nodes;
  limits.is_chain = is_chain;
  limits.max_depths = max_depths;
  if (costs) limits.costs = ToSpan(*costs);
  if (!allow.is_none()) limits.allow = &functions;
  std::vector<KnownNoise> of_texts;
  if (noise) {
    const auto& [keys, positions, sharpness] = *noise;
    if (keys.size() != texts.size() || positions.size() != texts.size()) {
      throw ValueError("search_mixtures: noise; expected a key and a position for each text");
    }
    for (std::size_t i = 0; i < texts.size(); ++i) {
      of_texts.push_back({keys[i], positions[i], sharpness});
    }
    limits.noise = &of_texts;
  }
  if (!allow.is_none()) threads = 1;
  const py::gil_scoped_release release;
  return SearchMixtures(texts, heads, limits, threads);
}

std::vector<Tokens> DraftForTexts(DraftLengths& lengths, const Texts& texts,
                                  const std::vector<int>& requests,
                                  const std::vector<std::int32_t>& max_lengths,
                                  const std::optional<Array<TokenId>>& token_ids,
                                  const std::optional<Array<float>>& log_probs,
                                  const std::optional<Array<float>>& transitions,
                                  double own_seconds, int threads) {
  const auto heads = ToHeads(token_ids, log_probs, transitions, texts.size());
  const py::gil_scoped_release release;
  return lengths.Draft(texts, requests, max_lengths, heads, own_seconds, threads);
}

PrefixTree SampleOne(MixtureText& text, int max_depth, int max_nodes, double least,
                     std::uint64_t key, const std::optional<Array<TokenId>>& token_ids,
                     const std::optional<Array<float>>& log_probs,
                     const std::optional<Array<float>>& transitions) {
  const auto heads = ToHeads(token_ids, log_probs, transitions, 1);
  SearchLimits limits;
  limits.max_nodes = max_nodes;
  limits.max_depth = max_depth;
  return text.Sample(heads.empty() ? HeadCandidates() : heads[0], limits, least, key);
}

std::pair<py::array_t<std::int64_t>, py::array_t<double>> Distribution(const MixtureText& text,
                                                                       NodeNumber node) {
  std::vector<std::int64_t> token_ids;
  std::vector<double> probs;
  for (const Successor& next : text.DistributionAfter(node)) {
    token_ids.push_back(next.token);
    probs.push_back(next.prob);
  }
  return {ToArray(std::move(token_ids)), ToArray(std::move(probs))};
}

// Bins (n, kMaxBins), -1 after the last; whether active and probabilities, (n, sources + 1) each.
std::tuple<py::array_t<std::int32_t>, py::array_t<bool>, py::array_t<double>> Examples(
    const MixtureText& text) {
  const int sources = text.mixture().layout().num_rows();
  const auto rows = static_cast<py::ssize_t>(text.examples().size());
  py::array_t<std::int32_t> bins({rows, py::ssize_t{kMaxBins}});
  py::array_t<bool> active({rows, py::ssize_t{sources}});
  py::array_t<double> probs({rows, py::ssize_t{sources}});
  for (py::ssize_t row = 0; row < rows; ++row) {
    const GateExample& example = text.examples()[static_cast<std::size_t>(row)];
    for (int b = 0; b < kMaxBins; ++b) {
      bins.mutable_at(row, b) =
          b < example.inputs.num_bins ? example.inputs.bins[static_cast<std::size_t>(b)] : -1;
    }
    for (int s = 0; s < sources; ++s) {
      active.mutable_at(row, s) = example.inputs.is_active[static_cast<std::size_t>(s)];
      probs.mutable_at(row, s) = example.probs[static_cast<std::size_t>(s)];
    }
  }
  return {std::move(bins), std::move(active), std::move(probs)};
}

}  // namespace

void BindMixture(py::module_& m) {
  py::class_<TextStore, std::shared_ptr<TextStore>>(m, "TextStore", "The latest texts' n-grams.")
      .def(py::init<std::size_t>(), py::arg("max_tokens"))
      .def(
          "add",
          [](TextStore& store, const Array<TokenId>& token_ids) { store.Add(ToSpan(token_ids)); },
          py::arg("token_ids").noconvert(), py::call_guard<py::gil_scoped_release>())
      .def("tokens", [](const TextStore& store) { return ToArray(store.Tokens()); })
      .def_property_readonly("max_tokens", &TextStore::max_tokens);
  py::class_<Mixture, std::shared_ptr<Mixture>>(m, "Mixture", "Sources of drafts and their gates.")
      .def(py::init(&MakeMixture), py::arg("vocab_size"), py::arg("has_heads"), py::arg("lms"),
           py::arg("has_text"), py::arg("store") = py::none(), py::arg("has_target") = false,
           py::arg("learning_rate") = 0.0, py::arg("theta") = py::none())
      .def_property_readonly("sources", [](const Mixture& mixture) {
        std::vector<std::string> names;
        for (const SourceKind kind : mixture.layout().sources()) {
          names.emplace_back(kKindNames[static_cast<int>(kind)]);
        }
        return names;
      });
  py::class_<MixtureText>(m, "MixtureText", "A text with what a mixture knows of it.")
      .def(py::init([](std::shared_ptr<Mixture> mixture) {
             return std::make_unique<MixtureText>(std::move(mixture));
           }),
           py::arg("mixture"))
      .def(
          "append", [](MixtureText& text, const Tokens& tokens) { text.Append(tokens); },
          py::arg("token_ids"))
      .def(
          "add_predictions",
          [](MixtureText& text, std::size_t length, const PrefixTree& tree,
             const Array<TokenId>& token_ids, const Array<float>& log_probs) {
            text.AddPredictions(length, tree, ToSpan(token_ids), ToSpan(log_probs));
          },
          py::arg("length"), py::arg("tree"), py::arg("token_ids").noconvert(),
          py::arg("log_probs").noconvert())
      .def("sample", &SampleOne, py::arg("max_depth"), py::arg("max_nodes"), py::arg("least"),
           py::arg("key"), py::arg("token_ids") = py::none(), py::arg("log_probs") = py::none(),
           py::arg("transitions") = py::none())
      .def("distribution_after", &Distribution, py::arg("node"))
      .def("keep_examples", &MixtureText::KeepExamples)
      .def("examples", &Examples)
      .def_property_readonly(
          "theta", [](const MixtureText& text) { return ToArray(Span<double>(text.theta())); })
      .def("__len__", &MixtureText::size);
  py::class_<DraftLengths>(m, "DraftLengths", "Drafts as long as the time of steps pays.")
      .def(py::init<int, bool, bool>(), py::arg("num_tokens"), py::arg("has_slots"),
           py::arg("may_pause"))
      .def(
          "observe",
          [](DraftLengths& lengths, const std::vector<std::string>& names,
             const std::vector<int>& kept, const std::optional<std::vector<int>>& verified,
             double now) {
            lengths.Observe(names, kept, verified ? Span<int>(*verified) : Span<int>(), now);
          },
          py::arg("names"), py::arg("kept"), py::arg("verified"), py::arg("now"))
      .def("finish", &DraftLengths::Finish, py::arg("now"))
      .def_property_readonly("is_timing", &DraftLengths::is_timing)
      .def("is_paused", &DraftLengths::IsPaused, py::arg("num_requests"))
      .def("reads_slots", &DraftLengths::ReadsSlots)
      .def("draft", &DraftForTexts, py::arg("texts"), py::arg("requests"), py::arg("max_lengths"),
           py::arg("token_ids"), py::arg("log_probs"), py::arg("transitions"),
           py::arg("own_seconds"), py::arg("threads") = 1)
      .def("step_seconds", &DraftLengths::StepSeconds, py::arg("num_requests"));
  m.def(
      "gate_bins",
      [](const std::vector<std::string>& sources) {
        std::vector<SourceKind> kinds;
        for (const std::string& name : sources) {
          const auto* end = std::end(kKindNames);
          const auto* kind = std::find(std::begin(kKindNames), end, name);
          if (kind == end) throw ValueError(StrCat("gate_bins: no source ", name));
          kinds.push_back(static_cast<SourceKind>(kind - std::begin(kKindNames)));
        }
        const GateLayout layout(kinds);
        std::vector<int> bins;
        for (int s = 0; s < layout.num_sources(); ++s) bins.push_back(layout.FirstBin(s));
        return std::pair(bins, layout.num_bins());
      },
      py::arg("sources"));
  m.def("search_mixtures", &SearchBatch, py::arg("texts"), py::arg("max_depths"),
        py::arg("max_nodes"), py::arg("is_chain") = false, py::arg("token_ids") = py::none(),
        py::arg("log_probs") = py::none(), py::arg("transitions") = py::none(),
        py::arg("costs") = py::none(), py::arg("allow") = py::none(), py::arg("noise") = py::none(),
        py::arg("threads") = 1);
}

}  // namespace lattice_bpd
