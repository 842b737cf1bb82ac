//! Values that a door derives from a config. They are derived again when another config is put in
//! force.
//!
//! A request gets the value of the config that decides it. So a table that is indexed by the
//! position of a rule is never used with the rules of another config.

use std::ops::Deref;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tollgate::{ActiveConfig, Engine};

/// A value derived from the config.
pub(crate) struct PerConfig<T> {
    made: ArcSwap<Made<T>>,
    make: Make<T>,
    /// Locked while a value is derived, so that concurrent requests derive it once.
    making: Mutex<()>,
}

type Make<T> = Box<dyn Fn(&ActiveConfig) -> T + Send + Sync>;

/// A value derived from one config.
pub(crate) struct Made<T> {
    generation: u64,
    value: T,
}

impl<T> Deref for Made<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> PerConfig<T> {
    /// Derives a value from the config of `engine` with `make`, now and after each change.
    pub(crate) fn new(
        engine: &Engine,
        make: impl Fn(&ActiveConfig) -> T + Send + Sync + 'static,
    ) -> PerConfig<T> {
        PerConfig {
            made: ArcSwap::from(made(&engine.active(), &make)),
            make: Box::new(make),
            making: Mutex::new(()),
        }
    }

    /// Returns the value of `live`.
    #[inline]
    pub(crate) fn of(&self, live: &ActiveConfig) -> Arc<Made<T>> {
        let made = self.made.load_full();
        if made.generation == live.generation() {
            return made;
        }
        self.make_of(live)
    }

    #[cold]
    fn make_of(&self, live: &ActiveConfig) -> Arc<Made<T>> {
        let _alone = self.making.lock();
        let known = self.made.load_full();
        if known.generation == live.generation() {
            return known;
        }
        let made = made(live, &self.make);
        // A request with an older config gets its own value, and the stored value stays.
        if known.generation < made.generation {
            self.made.store(Arc::clone(&made));
        }
        made
    }
}

fn made<T>(live: &ActiveConfig, make: &impl Fn(&ActiveConfig) -> T) -> Arc<Made<T>> {
    Arc::new(Made {
        generation: live.generation(),
        value: make(live),
    })
}

#[cfg(test)]
mod tests {
    use tollgate::Config;

    use super::*;

    fn config(rules: &str) -> Config {
        let yaml = format!("version: 1\nrules: [{rules}]\n");
        tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap()
    }

    #[test]
    fn each_request_gets_the_value_of_its_config() {
        let one = "{ id: one, algorithm: fixed-window, limit: 1, window: 1s }";
        let engine = Engine::start_unchecked(&config("")).unwrap();
        let rules = PerConfig::new(&engine, |live| live.rules().rules().len());
        let before = engine.active();
        assert_eq!(**rules.of(&before), 0);
        engine.reload(&config(one));
        let after = engine.active();
        let made = rules.of(&after);
        assert_eq!(**made, 1);
        assert_eq!(**rules.of(&before), 0);
        assert!(Arc::ptr_eq(&rules.of(&after), &made), "made once");
    }
}
