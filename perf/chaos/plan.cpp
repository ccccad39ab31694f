#include "plan.hpp"

#include <algorithm>
#include <random>
#include <sstream>
#include <stdexcept>

namespace mep::chaos {
namespace {

const std::vector<std::string> kViewPoints = {"freeze",  "frozen",  "catch-up",
                                              "fence",   "prepare", "commit",
                                              "install", "adopt",   "catch-up receive"};

constexpr uint32_t kMostGrown = 16;

[[noreturn]] void bad_step(const std::string& text) {
  throw std::runtime_error("the plan's step \"" + text + "\" is not understood; see --help");
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\n");
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    part = trimmed(part);
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

// "POINT[:NTH]", or a number of iterations.
void parse_moment(const std::string& text, const std::string& whole, Step* step) {
  if (text.empty()) bad_step(whole);
  if (std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    step->count = std::stoull(text);
    return;
  }
  const size_t colon = text.find(':');
  step->point = trimmed(text.substr(0, colon));
  if (colon != std::string::npos) step->nth = std::max(1ull, std::stoull(text.substr(colon + 1)));
}

Step parse_step(const std::string& text, uint32_t ranks) {
  Step step;
  std::string head = text;
  const size_t at = text.find(" at ");
  if (at != std::string::npos) {
    head = text.substr(0, at);
    parse_moment(trimmed(text.substr(at + 4)), text, &step);
  }
  std::istringstream words(head);
  std::string verb;
  std::string list;
  words >> verb;
  const auto read_ranks = [&] {
    words >> list;
    for (const std::string& rank : split(list, ',')) {
      step.ranks.push_back(static_cast<uint32_t>(std::stoul(rank)));
      // Ranks that a grow step adds may be named, too.
      if (step.ranks.back() >= ranks + kMostGrown) bad_step(text);
    }
    if (step.ranks.empty()) bad_step(text);
  };
  if (verb == "kill") {
    read_ranks();
  } else if (verb == "stop") {
    step.kind = Step::Kind::kStop;
    read_ranks();
    if (!(words >> step.seconds)) bad_step(text);
  } else if (verb == "slow") {
    step.kind = Step::Kind::kSlow;
    read_ranks();
    if (!(words >> step.factor >> step.seconds) || step.factor < 2) bad_step(text);
  } else if (verb == "rejoin") {
    step.kind = Step::Kind::kRejoin;
    std::string rest;
    std::getline(words, rest);
    rest = trimmed(rest);
    const size_t equals = rest.find("=kill");
    if (!rest.empty() && equals == std::string::npos) bad_step(text);
    if (!rest.empty()) step.point = rest.substr(0, equals);
  } else if (verb == "arm") {
    step.kind = Step::Kind::kArm;
    read_ranks();
    std::getline(words, step.point);
    step.point = trimmed(step.point);
    if (step.point.empty()) bad_step(text);
  } else if (verb == "grow" || verb == "wait") {
    step.kind = verb == "grow" ? Step::Kind::kGrow : Step::Kind::kWait;
    if (!(words >> step.count)) bad_step(text);
  } else {
    bad_step(text);
  }
  return step;
}

}  // namespace

bool is_view_point(const std::string& point) {
  return std::find(kViewPoints.begin(), kViewPoints.end(), point) != kViewPoints.end();
}

const std::vector<std::string>& member_points() {
  static const std::vector<std::string> points = {
      "enter",         "eager post",   "put",        "put half",     "signal",   "eager collect",
      "large publish", "large reduce", "large copy", "large finish", "complete", "freeze",
      "frozen",        "prepare",      "commit",     "install",      "adopt"};
  return points;
}

std::string Step::text() const {
  std::ostringstream out;
  const auto list = [&] {
    for (size_t i = 0; i < ranks.size(); ++i) out << (i == 0 ? " " : ",") << ranks[i];
  };
  switch (kind) {
    case Kind::kArm:
      out << "arm";
      list();
      out << " " << point;
      break;
    case Kind::kKill:
      out << "kill";
      list();
      break;
    case Kind::kStop:
      out << "stop";
      list();
      out << " " << seconds;
      break;
    case Kind::kSlow:
      out << "slow";
      list();
      out << " " << factor << " " << seconds;
      break;
    case Kind::kRejoin:
      out << "rejoin" << (point.empty() ? "" : " " + point + "=kill");
      break;
    case Kind::kGrow:
      out << "grow " << count;
      break;
    case Kind::kWait:
      out << "wait " << count;
      break;
  }
  if (kind == Kind::kKill || kind == Kind::kStop) {
    if (!point.empty()) out << " at " << point << ":" << nth;
    if (point.empty() && count != 0) out << " at " << count;
  }
  return out.str();
}

std::vector<Step> parse_plan(const std::string& text, uint32_t ranks) {
  std::vector<Step> plan;
  for (const std::string& part : split(text, ';')) {
    try {
      plan.push_back(parse_step(part, ranks));
    } catch (const std::logic_error&) {  // of stoul and friends
      bad_step(part);
    }
  }
  return plan;
}

std::vector<Step> generate_plan(const Options& options) {
  std::mt19937_64 random(options.seed);
  const auto draw = [&](uint64_t below) { return random() % below; };
  const std::vector<std::string> kinds = split(options.mix, ',');
  if (kinds.empty()) throw std::runtime_error("--mix is empty");
  std::vector<Step> plan;
  for (uint64_t fault = 0; fault < options.faults; ++fault) {
    const std::string& kind = kinds[draw(kinds.size())];
    Step step;
    step.ranks = {static_cast<uint32_t>(draw(options.ranks))};
    if (kind == "kill" || kind == "two") {
      if (kind == "two" && options.ranks > 2) {
        step.ranks.push_back(
            static_cast<uint32_t>((step.ranks[0] + 1 + draw(options.ranks - 1)) % options.ranks));
      } else if (draw(2) == 0) {
        step.count = 1 + draw(200);
      }
    } else if (kind == "stop") {
      constexpr double kLengths[] = {0.02, 0.1, 0.3, 1};
      step.kind = Step::Kind::kStop;
      step.seconds = kLengths[draw(4)];
    } else if (kind == "slow") {
      step.kind = Step::Kind::kSlow;
      step.factor = 20;
      step.seconds = 1;
    } else if (kind == "point") {
      step.point = member_points()[draw(member_points().size())];
      step.nth = 1 + draw(is_view_point(step.point) ? 1 : 20);
    } else {
      throw std::runtime_error("--mix: unknown kind " + kind);
    }
    plan.push_back(step);
    if (step.kind == Step::Kind::kKill) {
      plan.emplace_back();
      plan.back().kind = Step::Kind::kRejoin;
    }
  }
  return plan;
}

}  // namespace mep::chaos
