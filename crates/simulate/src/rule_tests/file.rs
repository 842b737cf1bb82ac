//! The form of a test file, read with positions and checked.

use std::collections::HashSet;

use jiff::Timestamp;
use tollgate::{MAX_AMOUNT, Reason, Span, Time};
use tollgate_config::ConfigError;
use tollgate_rules::document::{
    At, BadValue, Duration, Field, Flag, List, Named, Node, Place, Problems, Read, Short, Text,
    Texts, Whole, nearest, number, one_of, parse_document, section, words,
};
use tollgate_rules::is_attribute_name;

const EMPTY_HELP: &str = "start with `version: 1`, the `config` to test and a list of `tests`";
/// The most requests of a file, repetitions included.
const MAX_REQUESTS: u64 = 10_000_000;
/// The longest text of an attribute, as at the doors.
const MAX_VALUE: usize = 4096;
/// The time at which a test starts, unless it says otherwise: 2026-01-01T00:00:00Z, a Thursday.
const START: Time = Time::from_micros(1_767_225_600_000_000);

section! {
    /// A file of tests for the rules of a config.
    pub(crate) struct RawTestFile is "a test file" {
        /// The version of the format: 1.
        version (required): Whole = "version",
        /// The config to test. The path is relative to this file.
        config: Text = "config",
        /// When each test starts, such as 2026-03-01T12:00:00Z (default 2026-01-01T00:00:00Z).
        start: Instant = "start",
        /// Attributes of all requests.
        with: Named<Text> = "with",
        /// The tests. Each starts without usage.
        tests (required): List<RawTest> = "tests",
    }
}

section! {
    /// A test: steps in the order of their times.
    pub(crate) struct RawTest is "a test" {
        /// What the test shows, in words.
        name (required): Text = "name",
        /// When the test starts, such as 2026-03-01T12:00:00Z.
        start: Instant = "start",
        /// Attributes of all requests of the test.
        with: Named<Text> = "with",
        /// The steps.
        steps (required): List<RawStep> = "steps",
    }
}

section! {
    /// A step: a request, or several, and the decision that is expected.
    pub(crate) struct RawStep is "a step" {
        /// What the step does (default check).
        act: Verb = "do",
        /// When: the time since the start of the test.
        at: Duration = "at",
        /// When: the time since the end of the step before.
        after: Duration = "after",
        /// How often (default 1).
        times: Whole = "times",
        /// The time between repetitions (default 0s).
        every: Duration = "every",
        /// Attributes of the request.
        with: Named<Text> = "with",
        /// A request to a proxy, such as `POST https://api.example.com/login`. The routes of the config set its action.
        request: Text = "request",
        /// How many units the request costs (default 1).
        cost: Whole = "cost",
        /// Whether to take what is left if it is less than the cost (default false).
        up_to: Flag = "up_to",
        /// How long a reservation or a lease lasts.
        ttl: Duration = "ttl",
        /// A name for the reservation or the lease, for later steps.
        named: Text = "as",
        /// The reservation or the lease of an earlier step.
        of: Text = "of",
        ..expectations: RawExpectations
    }
}

section! {
    /// What is expected of a step. With `times`, `expect` holds for each request and the other fields for the last.
    pub(crate) struct RawExpectations is "a step" {
        /// The decision.
        expect: Expected = "expect",
        /// How many of the requests are allowed. The others are denied.
        allowed: Whole = "allowed",
        /// The rule that decides: for a denial the rule with the longest wait, otherwise the rule with the least left.
        rule: Text = "rule",
        /// Why the request is denied, such as exceeded.
        reason: Text = "reason",
        /// How long to wait before the same request can be allowed.
        retry_after: Duration = "retry_after",
        /// How many units are left under the rule that decides.
        remaining: Whole = "remaining",
        /// The limit of the rule that decides.
        limit: Whole = "limit",
        /// How many units were taken.
        granted: Whole = "granted",
        /// How long an admitted request waits for its turn.
        delay: Duration = "delay",
        /// The shadow rules that would deny; [] for none.
        shadow_denied: Texts = "shadow_denied",
    }
}

words! {
    /// What a step does.
    pub(crate) enum Verb is "an action of a step" {
        /// Decides a request, and takes its cost.
        Check = "check",
        /// Decides a request, and takes nothing.
        Peek = "peek",
        /// Gives units back.
        Refund = "refund",
        /// Forgets the usage of the subjects of a request.
        Reset = "reset",
        /// Reserves units.
        Reserve = "reserve",
        /// Settles a reservation with the cost of this step.
        Commit = "commit",
        /// Takes a lease of concurrency slots.
        Acquire = "acquire",
        /// Renews a lease.
        Renew = "renew",
        /// Ends a reservation or a lease.
        Release = "release",
    }
}

words! {
    /// The decision that is expected.
    pub(crate) enum Expected is "`allowed`, `denied` or `failed`" {
        /// The request is allowed.
        Allowed = "allowed",
        /// The request is denied.
        Denied = "denied",
        /// The step is an error, such as the commit of a reservation that has ended.
        Failed = "failed",
    }
}

/// A time in the form of RFC 3339.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instant(Time);

impl Read for Instant {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Instant> {
        let help = "write a time such as 2026-03-01T12:00:00Z";
        let parse = |text: &str| {
            let bad = || BadValue::new(format!("`{}` is not a time", Short(text)), help);
            let time: Timestamp = text.parse().map_err(|_| bad())?;
            let micros = u64::try_from(time.as_microsecond()).map_err(|_| bad())?;
            match Time::from_micros(micros) {
                time if time < Time::MAX => Ok(Instant(time)),
                _ => Err(bad()),
            }
        };
        number(node, "a time", help, parse, problems)
    }
}
tollgate_rules::document::schema!(Instant, "Instant", _generator => {
    "type": "string", "format": "date-time", "examples": ["2026-03-01T12:00:00Z"],
});

/// A test file, read and checked. It is not yet compared with a config.
#[derive(Debug)]
pub struct TestFile {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) config: Option<String>,
    pub(super) tests: Vec<Test>,
}

#[derive(Debug)]
pub(super) struct Test {
    pub(super) name: At<String>,
    pub(super) start: Time,
    pub(super) steps: Vec<Step>,
}

#[derive(Debug)]
pub(super) struct Step {
    pub(super) place: Place,
    pub(super) act: Verb,
    /// The time since the start of the test.
    pub(super) at: Span,
    pub(super) times: u64,
    pub(super) every: Span,
    pub(super) attributes: Vec<(String, String)>,
    pub(super) request: Option<Request>,
    pub(super) cost: u64,
    pub(super) up_to: bool,
    pub(super) ttl: Option<Span>,
    pub(super) named: Option<String>,
    /// The reservation or the lease of an earlier step.
    pub(super) of: Option<At<String>>,
    pub(super) expected: RawExpectations,
}

/// A request as a proxy describes it.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) scheme: Option<&'static str>,
    pub(super) host: Option<String>,
    /// Without the query.
    pub(super) path: String,
}

impl TestFile {
    /// Reads a test file. `name` is its name in messages.
    ///
    /// # Errors
    /// If the text is not a valid test file. The error has every problem.
    pub fn read(name: &str, text: &str) -> Result<TestFile, ConfigError> {
        let mut problems = Problems::new(text);
        let file = parse_document(EMPTY_HELP, &mut problems).and_then(|root| {
            let raw = RawTestFile::read(&root, &mut problems)?;
            Some(raw.validate(root.place.start, &mut problems))
        });
        match file {
            Some((config, tests)) if problems.is_empty() => Ok(TestFile {
                name: name.to_owned(),
                text: text.to_owned(),
                config,
                tests,
            }),
            _ => Err(problems.into_error(name)),
        }
    }

    /// The name of the file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of the config to test, as written.
    #[must_use]
    pub fn config(&self) -> Option<&str> {
        self.config.as_deref()
    }

    /// Reports the rules that a step names and the config does not have.
    pub(super) fn check_rules(&self, known: &[&str]) -> Result<(), ConfigError> {
        let mut problems = Problems::new(&self.text);
        let mut check = |at: &At<Text>| {
            let name = at.value.0.as_str();
            if !known.contains(&name) {
                let message = format!("the config has no rule `{}`", Short(name));
                let help = match nearest(name, known.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("its rules are {}", one_of(known.iter().copied())),
                };
                problems.report(at.place, message, help);
            }
        };
        for step in self.tests.iter().flat_map(|test| &test.steps) {
            if let Some(at) = step.expected.rule.get() {
                check(at);
            }
            if let Some(shadows) = step.expected.shadow_denied.value() {
                shadows.0.iter().for_each(&mut check);
            }
        }
        match problems.is_empty() {
            true => Ok(()),
            false => Err(problems.into_error(&self.name)),
        }
    }
}

/// Makes an empty place at the start of another.
fn start_of(place: Place) -> Place {
    Place::new(place.start, place.start)
}

impl RawTestFile {
    fn validate(&self, start: usize, problems: &mut Problems<'_>) -> (Option<String>, Vec<Test>) {
        let start = Place::new(start, start);
        let help = "this Tollgate reads version 1: write `version: 1`";
        match &self.version {
            Field::Absent => problems.report(start, "the test file has no `version`", help),
            Field::Given { at, .. } if at.value.0 != 1 => {
                let message = format!("version {} is not supported", at.value.0);
                problems.report(at.place, message, help);
            }
            Field::Broken { .. } | Field::Given { .. } => {}
        }
        if self.tests.is_absent() {
            let help = "add `tests`, a list of tests with a `name` and `steps`";
            problems.report(start, "the test file has no `tests`", help);
        }
        let begin = self.start.value().map_or(START, |it| it.0);
        let with = attributes(&self.with, problems);
        let mut names = HashSet::new();
        let mut requests = 0_u64;
        let mut tests = Vec::new();
        for at in self.tests.value().map_or(&[][..], |list| &list.0) {
            let Some(test) = at.value.validate(at.place, (begin, &with), problems) else {
                continue;
            };
            if !names.insert(test.name.value.clone()) {
                let message = format!("there are two tests `{}`", Short(&test.name.value));
                problems.report(test.name.place, message, "give each test its own name");
            }
            let of_test = test.steps.iter().map(|step| step.times);
            let before = requests;
            requests = of_test.fold(requests, u64::saturating_add);
            if requests > MAX_REQUESTS && before <= MAX_REQUESTS {
                let message = format!("the file has more than {MAX_REQUESTS} requests");
                let help = "use smaller numbers in `times`, or split the file";
                problems.report(test.name.place, message, help);
            }
            tests.push(test);
        }
        let config = self.config.value().map(|text| text.0.clone());
        (config, tests)
    }
}

impl RawTest {
    fn validate(
        &self,
        place: Place,
        (start, with): (Time, &[(String, String)]),
        problems: &mut Problems<'_>,
    ) -> Option<Test> {
        if self.name.is_absent() {
            let help = "add a `name` that says what the test shows";
            problems.report(start_of(place), "this test has no `name`", help);
        }
        if self.steps.is_absent() {
            let help = "add `steps`, such as `- { times: 5, expect: allowed }`";
            problems.report(start_of(place), "this test has no `steps`", help);
        }
        let start = self.start.value().map_or(start, |it| it.0);
        let with = merged(with, attributes(&self.with, problems));
        let mut steps: Vec<Step> = Vec::new();
        let mut holds = HashSet::new();
        let mut now = Span::ZERO;
        for at in self.steps.value().map_or(&[][..], |list| &list.0) {
            let Some(step) = at.value.validate(at.place, (now, &with), problems) else {
                continue;
            };
            if let Some(of) = &step.of
                && !holds.contains(&of.value)
            {
                let message = format!("no earlier step makes `{}`", Short(&of.value));
                let help = format!("write `as: {}` in the step that makes it", Short(&of.value));
                problems.report(of.place, message, help);
            }
            holds.extend(step.named.clone());
            let lasts = step.every.as_micros().saturating_mul(step.times - 1);
            let end = step.at.as_micros().saturating_add(lasts);
            if start.as_micros().saturating_add(end) >= Time::MAX.as_micros() {
                let help = "use shorter times";
                problems.report(
                    start_of(at.place),
                    "this step is too far in the future",
                    help,
                );
            }
            now = Span::from_micros(end);
            steps.push(step);
        }
        let name = self.name.get()?;
        Some(Test {
            name: At {
                place: name.place,
                value: name.value.0.clone(),
            },
            start,
            steps,
        })
    }
}

impl RawStep {
    /// Checks the fields. `now` is the end of the step before.
    fn validate(
        &self,
        place: Place,
        (now, with): (Span, &[(String, String)]),
        problems: &mut Problems<'_>,
    ) -> Option<Step> {
        if let (Some(_), Some(key)) = (self.at.key(), self.after.key()) {
            problems.report(
                key,
                "`at` and `after` cannot be used together",
                "keep one of the two",
            );
        }
        let at = match (self.at.get(), self.after.get()) {
            (Some(at), _) if at.value.0 < now => {
                let help = format!("the step before ends at {now}: use a later time, or `after`");
                problems.report(at.place, "this step is before the one above it", help);
                now
            }
            (Some(at), _) => at.value.0,
            (None, Some(after)) => {
                Span::from_micros(now.as_micros().saturating_add(after.value.0.as_micros()))
            }
            (None, None) => now,
        };
        let times = self.times.value().map_or(1, |it| it.0);
        if let (Some(at), false) = (self.times.get(), (1..=MAX_REQUESTS).contains(&times)) {
            let message = format!("{times} is not between 1 and {MAX_REQUESTS}");
            problems.report(at.place, message, "write how often to repeat the request");
            return None;
        }
        let act = self.act.value().copied().unwrap_or(Verb::Check);
        self.check_fields(place, act, problems);
        let cost = self.cost.value().map_or(1, |it| it.0);
        if let (Some(at), true) = (self.cost.get(), cost > MAX_AMOUNT) {
            let message = format!("a cost of {cost} is above the largest amount, {MAX_AMOUNT}");
            problems.report(at.place, message, "write a smaller number");
        }
        self.expectations.validate(times, problems);
        let request = self.request.get();
        let request = request.and_then(|at| problems.accept(at.place, request_of(&at.value.0)));
        Some(Step {
            place,
            act,
            at,
            times,
            every: self.every.value().map_or(Span::ZERO, |it| it.0),
            attributes: merged(with, attributes(&self.with, problems)),
            request,
            cost,
            up_to: self.up_to.value().is_some_and(|flag| flag.0),
            ttl: self.ttl.value().map(|it| it.0),
            named: self.named.value().map(|text| text.0.clone()),
            of: self.of.get().map(|at| At {
                place: at.place,
                value: at.value.0.clone(),
            }),
            expected: self.expectations.taken(),
        })
    }

    /// Reports fields that the action does not use, and those that it needs.
    fn check_fields(&self, place: Place, act: Verb, problems: &mut Problems<'_>) {
        let name = act.name();
        let ends = matches!(act, Verb::Commit | Verb::Renew | Verb::Release);
        let makes = matches!(act, Verb::Reserve | Verb::Acquire);
        let asks = matches!(act, Verb::Check | Verb::Peek);
        let has_cost = asks || matches!(act, Verb::Refund | Verb::Reserve | Verb::Commit);
        let unused = [
            ("of", self.of.key(), ends),
            ("as", self.named.key(), makes),
            ("ttl", self.ttl.key(), makes || act == Verb::Renew),
            ("cost", self.cost.key(), has_cost),
            ("up_to", self.up_to.key(), asks),
            ("with", self.with.key(), !ends),
            ("request", self.request.key(), !ends),
        ];
        for (field, key, is_used) in unused {
            if let (Some(key), false) = (key, is_used) {
                let message = format!("`{field}` has no effect with `do: {name}`");
                problems.report(key, message, format!("remove `{field}`"));
            }
        }
        if ends && self.of.is_absent() {
            let message = format!("`do: {name}` needs `of`");
            let help = "name the reservation or the lease of an earlier step, as its `as` does";
            problems.report(start_of(place), message, help);
        }
    }
}

impl RawExpectations {
    fn validate(&self, times: u64, problems: &mut Problems<'_>) {
        if let (Some(_), Some(key)) = (self.expect.key(), self.allowed.key()) {
            let help = "keep `expect` if all requests get the same decision, otherwise `allowed`";
            problems.report(key, "`expect` and `allowed` cannot be used together", help);
        }
        if let Some(at) = self.allowed.get().filter(|at| at.value.0 > times) {
            let message = format!("{} requests cannot be allowed", at.value.0);
            problems.report(at.place, message, format!("the step has {times}"));
        }
        if let Some(at) = self.reason.get() {
            let reasons = Reason::ALL.map(Reason::name);
            let name = at.value.0.as_str();
            if !reasons.contains(&name) {
                let message = format!("`{}` is not a reason", Short(name));
                let help = match nearest(name, reasons) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("write {}", one_of(reasons)),
                };
                problems.report(at.place, message, help);
            }
        }
    }

    /// Returns the same expectations. Fields own their values.
    fn taken(&self) -> RawExpectations {
        fn copy<T: Clone>(field: &Field<T>) -> Field<T> {
            match field {
                Field::Absent => Field::Absent,
                Field::Broken { key } => Field::Broken { key: *key },
                Field::Given { key, at } => Field::Given {
                    key: *key,
                    at: at.clone(),
                },
            }
        }
        RawExpectations {
            expect: copy(&self.expect),
            allowed: copy(&self.allowed),
            rule: copy(&self.rule),
            reason: copy(&self.reason),
            retry_after: copy(&self.retry_after),
            remaining: copy(&self.remaining),
            limit: copy(&self.limit),
            granted: copy(&self.granted),
            delay: copy(&self.delay),
            shadow_denied: match &self.shadow_denied {
                Field::Absent => Field::Absent,
                Field::Broken { key } => Field::Broken { key: *key },
                Field::Given { key, at } => Field::Given {
                    key: *key,
                    at: At {
                        place: at.place,
                        value: Texts(at.value.0.clone()),
                    },
                },
            },
        }
    }
}

/// Reads the attributes of a field. Reports names that cannot be attributes.
fn attributes(field: &Field<Named<Text>>, problems: &mut Problems<'_>) -> Vec<(String, String)> {
    let given = field.value().map_or(&[][..], |named| &named.0);
    for (name, value) in given {
        if !is_attribute_name(&name.value) {
            let message = format!("`{}` is not an attribute name", Short(&name.value));
            let help = "start with a letter or _, then use letters, digits, _, . or -";
            problems.report(name.place, message, help);
        }
        if value.value.0.len() > MAX_VALUE {
            let message = format!("the value is longer than {MAX_VALUE} bytes");
            problems.report(value.place, message, "doors reject such a request");
        }
    }
    let pairs = given.iter();
    let pairs = pairs.map(|(name, value)| (name.value.clone(), value.value.0.clone()));
    pairs.collect()
}

/// Returns the attributes of `outer` with those of `inner`, which win.
fn merged(outer: &[(String, String)], inner: Vec<(String, String)>) -> Vec<(String, String)> {
    let is_given = |name: &String| inner.iter().any(|(given, _)| given == name);
    let outer = outer.iter().filter(|(name, _)| !is_given(name)).cloned();
    outer.collect::<Vec<_>>().into_iter().chain(inner).collect()
}

/// Reads `METHOD URL` or `METHOD /path`.
fn request_of(text: &str) -> Result<Request, BadValue> {
    let help = "write a method and a path or a URL, such as `POST https://api.example.com/login`";
    let bad = || BadValue::new(format!("`{}` is not a request", Short(text)), help);
    let (method, target) = text.split_once(' ').ok_or_else(bad)?;
    let target = target.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = match target.split_once("://") {
        Some(("https", rest)) => (Some("https"), rest),
        Some(("http", rest)) => (Some("http"), rest),
        Some(_) => return Err(bad()),
        None => (None, target),
    };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    if !is_method || scheme.is_some() == host.is_empty() || text.len() > MAX_VALUE {
        return Err(bad());
    }
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    Ok(Request {
        method: method.to_owned(),
        scheme,
        host: (!host.is_empty()).then(|| host.to_ascii_lowercase()),
        path: if path.is_empty() { "/" } else { path }.to_owned(),
    })
}
