//! Which rules have a shared state: the state of new subjects that came while there was no room for their own.
//!
//! While a shared state lives, the state of a new subject starts as a copy of it. So calls have to name the
//! shared states of these rules, and the calls for other rules stay short. Instances tell each other through
//! an index in Redis: a sorted set of rules, by the time at which their shared states end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tollgate_core::Time;

use crate::key_name::KeyNames;

/// The most rules that are remembered. With more rules, every call names the shared states.
const MOST: usize = 10_000;

/// Rules with a shared state, each as `<rule>:<algorithm>`.
#[derive(Debug, Default)]
pub(crate) struct SharedStates {
    /// Whether any rule has a shared state.
    any: AtomicBool,
    rules: Mutex<HashMap<Box<[u8]>, Live>>,
    decisions: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    /// When the shared state ends, by the clock of the store.
    until: Time,
    /// Whether other instances have to be told.
    is_news: bool,
}

impl SharedStates {
    /// Whether the rule of the state with this name may have a shared state.
    #[inline]
    pub(crate) fn has(&self, naming: &KeyNames, name: &[u8]) -> bool {
        self.any.load(Ordering::Relaxed) && {
            let rules = self.rules.lock();
            rules.len() >= MOST || rules.contains_key(&*naming.rule_of(name))
        }
    }

    /// Notes that this rule has a shared state until this time. `is_news` says whether to tell other instances.
    pub(crate) fn note(&self, rule: &[u8], until: Time, is_news: bool) {
        let mut rules = self.rules.lock();
        let is_room = rules.len() < MOST;
        match rules.get_mut(rule) {
            Some(live) if live.until >= until => {}
            Some(live) => *live = Live { until, is_news },
            None if is_room => {
                rules.insert(rule.into(), Live { until, is_news });
            }
            None => {}
        }
        self.any.store(true, Ordering::Relaxed);
    }

    /// Notes that other instances still have to be told about this rule.
    pub(crate) fn note_again(&self, rule: &[u8]) {
        if let Some(live) = self.rules.lock().get_mut(rule) {
            live.is_news = true;
        }
    }

    /// Counts a decision by a shared state.
    pub(crate) fn count(&self) {
        self.decisions.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many decisions shared states have made.
    pub(crate) fn decisions(&self) -> u64 {
        self.decisions.load(Ordering::Relaxed)
    }

    /// Forgets the rules whose shared states have ended.
    pub(crate) fn forget_ended(&self, now: Time) {
        let mut rules = self.rules.lock();
        rules.retain(|_, live| live.until > now);
        self.any.store(!rules.is_empty(), Ordering::Relaxed);
    }

    /// Returns the rules that other instances have to be told about, each with the end of its shared state.
    pub(crate) fn news(&self) -> Vec<(Box<[u8]>, Time)> {
        let mut rules = self.rules.lock();
        let news = rules.iter_mut().filter(|(_, live)| live.is_news);
        news.map(|(rule, live)| {
            live.is_news = false;
            (rule.clone(), live.until)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_forgotten_when_its_shared_state_ends() {
        let states = SharedStates::default();
        let naming = KeyNames::new("tg");
        let has = |rule: &str, letter: &str| {
            let name = format!("tg:v1:{{00000007}}:{rule}:{:032x}:{letter}", 7);
            states.has(&naming, name.as_bytes())
        };
        assert!(!has("login", "f"));
        states.note(b"login:f", Time::from_micros(100), true);
        states.note(b"api:m", Time::from_micros(200), false);
        assert!(has("login", "f") && has("api", "m") && !has("api", "f"));
        // An end before the known end changes nothing.
        states.note(b"login:f", Time::from_micros(50), true);
        let news = (Box::from(&b"login:f"[..]), Time::from_micros(100));
        assert_eq!(states.news(), [news]);
        assert_eq!(states.news(), []);
        states.forget_ended(Time::from_micros(100));
        assert!(!has("login", "f") && has("api", "m"));
        states.forget_ended(Time::from_micros(200));
        assert!(!has("api", "m"));
    }
}
