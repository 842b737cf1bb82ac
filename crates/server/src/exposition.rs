//! Metrics in the Prometheus text format.
//!
//! Labels are names from the rules file. No subject, key or address is ever a label.

use std::fmt::Write;

use tollgate::{Clock, Limiter, Reason, Rule, RuleCounts};

/// All metrics of `limiter`.
pub(crate) fn render<C: Clock>(limiter: &Limiter<C>, namespace: &str) -> String {
    let counts = limiter.metrics().counts();
    let rules = || limiter.rules().rules().iter().zip(&counts);
    let usage = limiter.usage();
    let mut page = Page(String::with_capacity(4096));

    page.family(
        "rate_limit_checks_total",
        "counter",
        "Checks by rule and outcome.",
    );
    for (rule, counts) in rules() {
        for (outcome, count) in outcomes(counts) {
            let labels = [
                ("rule", rule.id()),
                ("algorithm", rule.algorithm().name()),
                ("outcome", outcome),
            ];
            page.sample("rate_limit_checks_total", &labels, count);
        }
    }
    page.family(
        "rate_limit_rejected_total",
        "counter",
        "Refused checks by rule and reason.",
    );
    for (rule, counts) in rules() {
        for (reason, count) in Reason::ALL.into_iter().zip(counts.rejected) {
            let labels = [
                ("rule", rule.id()),
                ("subject_type", rule.subject_type()),
                ("reason", reason.name()),
            ];
            page.sample("rate_limit_rejected_total", &labels, count);
        }
    }
    page.per_rule(
        "rate_limit_shadow_rejected_total",
        "Checks a shadow rule would have refused.",
        rules().map(|(rule, counts)| (rule, counts.shadow_rejected)),
    );
    page.per_rule(
        "rate_limit_near_limit_total",
        "Allowed checks that left less than a fifth of the limit.",
        rules().map(|(rule, counts)| (rule, counts.near_limit)),
    );
    let namespace = [("namespace", namespace)];
    page.family("rate_limit_keys", "gauge", "States kept.");
    page.sample("rate_limit_keys", &namespace, usage.keys);
    page.family(
        "rate_limit_memory_bytes",
        "gauge",
        "Bytes the kept states occupy.",
    );
    page.sample("rate_limit_memory_bytes", &namespace, usage.bytes);
    page.family(
        "rate_limit_shared_decisions_total",
        "counter",
        "Checks of new subjects decided by a shared state because the key cap was reached.",
    );
    page.sample(
        "rate_limit_shared_decisions_total",
        &namespace,
        usage.shared,
    );
    page.family(
        "tollgate_build_info",
        "gauge",
        "The running version and its rules.",
    );
    let build = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("config_version", limiter.rules().version()),
    ];
    page.sample("tollgate_build_info", &build, 1);
    page.0
}

fn outcomes(counts: &RuleCounts) -> [(&'static str, u64); 3] {
    [
        ("allowed", counts.allowed),
        ("rejected", counts.rejected.iter().sum()),
        ("shadow_rejected", counts.shadow_rejected),
    ]
}

struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn per_rule<'a>(
        &mut self,
        name: &str,
        help: &str,
        counts: impl Iterator<Item = (&'a Rule, u64)>,
    ) {
        self.family(name, "counter", help);
        for (rule, count) in counts {
            self.sample(name, &[("rule", rule.id())], count);
        }
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            self.0.push_str(if i == 0 { "{" } else { "," });
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.0, "{label}=\"{text}\"");
        }
        let _ = writeln!(self.0, "}} {value}");
    }
}
