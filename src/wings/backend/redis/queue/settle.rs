//! Settling: calls of the script that ends and extends deliveries.
use std::time::Duration;

use redis::Value;

use super::{CAN, Part, RedisQueue, SETTLE, codec};
use crate::{
    backend::{
        ConnectionEvent,
        redis::script::{Call, micros},
    },
    port::{PortError, PortErrorKind},
    queue::{Address, QueueError, Receipt, Settle, check_visibility},
};

/// Maximum number of settlements, and of messages that they forward, in one call of the script.
const SETTLEMENTS: usize = 1000;

/// A settlement that may be made.
struct Valid<'a> {
    /// Place of the settlement in the request.
    at: usize,
    message: u64,
    delivery: u64,
    how: &'a Settle,
    /// Targets of its messages: the place of the root in the keys of the call, and the part.
    targets: Vec<(usize, Part)>,
}

impl RedisQueue {
    pub(super) async fn settle_all(
        &self,
        settlements: Vec<(Receipt, Settle)>,
    ) -> Result<Vec<Result<(), QueueError>>, QueueError> {
        let mut answers = Vec::with_capacity(settlements.len());
        let mut rest = &settlements[..];
        while !rest.is_empty() {
            let (some, others) = rest.split_at(codec::in_one_call(rest, SETTLEMENTS));
            match self.settle_some(some).await {
                Ok(some) => answers.extend(some),
                // Earlier calls were made, so their answers are kept.
                Err(error) if !answers.is_empty() => {
                    answers.extend(rest.iter().map(|_| Err(error.clone())));
                    break;
                }
                Err(error) => return Err(error),
            }
            rest = others;
        }
        Ok(answers)
    }

    /// Makes settlements in one call of the script.
    async fn settle_some(&self, some: &[(Receipt, Settle)]) -> Result<Vec<Result<(), QueueError>>, QueueError> {
        let mut roots = vec![self.0.root.clone()];
        let mut valid = Vec::with_capacity(some.len());
        let checked = some.iter().enumerate().map(|(at, (receipt, how))| {
            let targets = self.check(how, &mut roots)?;
            let (message, delivery) = self.0.tag.numbers(receipt).ok_or(QueueError::LeaseLost)?;
            valid.push(Valid { at, message, delivery, how, targets });
            Ok(())
        });
        let mut answers: Vec<Result<(), QueueError>> = checked.collect();
        if valid.is_empty() {
            return Ok(answers);
        }
        let mut call = Call::with_keys(&SETTLE, roots);
        call.arg(self.0.part.as_str()).arg(self.window()).items(valid.len());
        for one in &valid {
            call.arg(one.message);
        }
        call.second_list();
        for one in &valid {
            codec::add_settlement(&mut call, one.delivery, one.how, &one.targets);
        }
        let made = match self.0.redis.link.call(call).await? {
            Value::BulkString(made) if made.len() == valid.len() => made,
            _ => return Err(self.unexpected().outcome_unknown().into()),
        };
        for (one, made) in valid.iter().zip(made) {
            if made != b'1' {
                answers[one.at] = Err(QueueError::LeaseLost);
            }
        }
        Ok(answers)
    }

    /// Checks a settlement, and returns the targets of its messages. Adds their roots to the keys.
    fn check(&self, how: &Settle, roots: &mut Vec<String>) -> Result<Vec<(usize, Part)>, QueueError> {
        how.check(&CAN)?;
        if matches!(how, Settle::DeadLetter { .. }) && self.0.part == Part::DeadLetters {
            let message = "a dead letter cannot be dead-lettered again: complete or abandon it";
            return Err(PortError::new(PortErrorKind::Unsupported, message).into());
        }
        let mut targets = Vec::new();
        if let Settle::Forward { messages } = how {
            for (address, _) in messages {
                let (name, part) = self.queue_of(address).ok_or_else(|| address.refuse(&CAN))?;
                let root = self.0.redis.keys.queue(name);
                let place = roots.iter().position(|known| *known == root).unwrap_or_else(|| {
                    roots.push(root);
                    roots.len() - 1
                });
                targets.push((place + 1, part));
            }
        }
        Ok(targets)
    }

    /// Returns the queue on this server that the address names.
    fn queue_of<'a>(&self, address: &'a Address) -> Option<(&'a str, Part)> {
        let rest = address.as_text()?.strip_prefix("redis-")?.strip_prefix(self.0.redis.identity())?;
        let parts = [Part::Messages, Part::DeadLetters].into_iter();
        parts.filter_map(|part| Some((rest.strip_prefix(&format!("-{}-", part.as_str()))?, part))).next()
    }

    pub(super) async fn extend_one(
        &self,
        receipt: &Receipt,
        visibility: Duration,
        how: &str,
    ) -> Result<(), QueueError> {
        check_visibility(visibility)?;
        let (id, delivery) = self.0.tag.numbers(receipt).ok_or(QueueError::LeaseLost)?;
        let mut call = self.call(&SETTLE);
        call.arg(self.window()).items(1).arg(id).second_list();
        call.arg(how).arg(delivery).arg(micros(visibility));
        match self.0.redis.link.call(call).await? {
            Value::BulkString(made) if made == b"1" => Ok(()),
            Value::BulkString(_) => Err(QueueError::LeaseLost),
            _ => Err(self.unexpected().outcome_unknown().into()),
        }
    }

    /// Sets aside messages that cannot be read, and tells. After a failure they return, and are
    /// found again. Another receiver may have done it before.
    pub(super) async fn set_aside(&self, ids: Vec<Vec<u8>>) -> Result<(), PortError> {
        let mut call = self.call(&SETTLE);
        call.arg(self.window()).items(ids.len()).arg(&ids).second_list();
        for _ in &ids {
            call.arg("q").arg(0);
        }
        let made = match self.0.redis.link.call(call).await? {
            Value::BulkString(made) if made.len() == ids.len() => made,
            _ => return Err(self.unexpected().outcome_unknown()),
        };
        for (id, _) in ids.into_iter().zip(made).filter(|(_, made)| *made == b'1') {
            let message = String::from_utf8_lossy(&id).into_owned();
            let place = format!("{}{}:a", self.0.root, self.0.part.as_str());
            self.0.redis.link.base().send(|| ConnectionEvent::SetAside { message, place });
        }
        Ok(())
    }
}
