//! A list of texts that all instances share: the audit trail of a deployment.
//!
//! The newest text comes first. The list has a bound: a new text removes the oldest one. The list does not
//! expire.

use tollgate_store::StoreError;

use crate::shared_values::SharedValues;
use crate::store::RedisStore;

/// Adds texts. KEYS[1] is the list. ARGV[1] is the highest number of texts, and the other arguments are the
/// texts, the oldest first. Returns the number of texts.
const APPEND: &str = "\
for place = 2, #ARGV do
  redis.call('LPUSH', KEYS[1], ARGV[place])
end
redis.call('LTRIM', KEYS[1], 0, tonumber(ARGV[1]) - 1)
return redis.call('LLEN', KEYS[1])";

/// A bounded list of texts in Redis.
#[derive(Debug)]
pub struct SharedLog(SharedValues);

impl RedisStore {
    /// Returns the audit trail that the instances of `namespace` share.
    #[must_use]
    pub fn shared_log(&self, namespace: &str) -> SharedLog {
        SharedLog(self.values_at(self.shared.naming.audit(namespace)))
    }
}

impl SharedLog {
    /// Adds `texts`, the oldest first, and keeps the newest `most` texts.
    ///
    /// # Errors
    /// If the server does not confirm the change. The texts may still have been added.
    pub async fn append(&self, texts: &[String], most: usize) -> Result<(), StoreError> {
        let mut command = redis::cmd("EVAL");
        command.arg(APPEND).arg(1).arg(&*self.0.key).arg(most);
        self.0.ask::<usize>(command.arg(texts)).await?;
        Ok(())
    }

    /// Returns `count` texts, the newest first, after the newest `skipped` ones.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn read(&self, skipped: usize, count: usize) -> Result<Vec<String>, StoreError> {
        let last = skipped.saturating_add(count).saturating_sub(1);
        let mut command = redis::cmd("LRANGE");
        self.0
            .ask(command.arg(&*self.0.key).arg(skipped).arg(last))
            .await
    }
}
