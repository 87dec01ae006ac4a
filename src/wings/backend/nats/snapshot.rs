//! The last messages of many subjects as of one moment, by one request.
//!
//! A server reads them while it stores nothing else, and any server that holds the stream answers.
//! So a mark tells whether the answer is as new as the read.
use std::{collections::BTreeMap, time::Duration};

use async_nats::{
    Message, StatusCode,
    header::{NATS_SEQUENCE, NATS_SUBJECT, NATS_TIME_STAMP},
};
use bytes::Bytes;
use futures_util::StreamExt as _;

use super::{
    api::{GetMany, nanoseconds},
    link::Effect,
    store::{Head, NatsStore},
};
use crate::{
    port::{PortError, PortErrorKind, within},
    race::{First, race},
};

/// Silence after which a server counts as gone, and another one is asked.
const AGAIN: Duration = Duration::from_secs(1);
/// First pause before a server that is behind is asked again; the later ones are longer.
const PAUSE: Duration = Duration::from_millis(1);

/// Size at which an answer is no longer read; zero is some megabytes, and 1,024 messages.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Most {
    pub(super) bytes: usize,
    pub(super) messages: usize,
}

/// An answer to a request for many messages.
enum Answer {
    Whole(Vec<Message>),
    /// There are more messages than a server returns at once.
    TooMuch,
    Silence,
}

impl NatsStore {
    /// Reads the last messages of these subjects of a partition; a mark of it is no part of the
    /// answer. Lives are compared with one time. `None` if they are too many, or too long.
    pub(super) async fn snapshot(
        &self,
        partition: &str,
        mut subjects: Vec<String>,
        mut most: Most,
        confirm: bool,
    ) -> Result<Option<BTreeMap<String, Head>>, PortError> {
        let base = self.core.link.base();
        let until = base.clock.now() + base.config.request_timeout;
        let mark = self.core.names.mark(partition);
        let marked = if confirm { self.mark(mark.clone()).await? } else { 0 };
        if confirm && !subjects.contains(&self.core.names.partition(partition)) {
            subjects.push(mark.clone());
        }
        // The mark is one more.
        most.messages += usize::from(most.messages > 0);
        let link = &self.core.link;
        let call = format!("{}.DIRECT.GET.{}", base.config.api(), self.core.stream.name);
        let mut pause = PAUSE;
        loop {
            // The server does not answer a request that it refuses.
            let (asked, refusal) =
                (self.ask(&call, &subjects, most), link.refusal(&call, link.refusals(), Effect::Reads));
            let answer = match link.supervise(Effect::Reads, race(Box::pin(asked), Box::pin(refusal))).await? {
                First::One(answer) => answer?,
                First::Other(refused) => return Err(refused),
            };
            match answer {
                Answer::TooMuch => return Ok(None),
                Answer::Silence => {}
                Answer::Whole(messages) => {
                    let (mut heads, mut time, mut last_mark) = (BTreeMap::new(), None, 0);
                    for message in messages {
                        let (subject, number, at, head) = self.parse_message(message)?;
                        if subject == mark {
                            (last_mark, time) = (number, Some(at));
                        } else {
                            heads.insert(subject, head);
                        }
                    }
                    if last_mark >= marked {
                        self.settle(&mut heads, time.filter(|_| confirm)).await?;
                        return Ok(Some(heads));
                    }
                }
            }
            if base.clock.now() >= until {
                let message = "the server that answers reads is behind: has the stream a leader?";
                return Err(link.failure(PortErrorKind::Unavailable, message));
            }
            base.clock.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    async fn settle(&self, heads: &mut BTreeMap<String, Head>, time: Option<u64>) -> Result<(), PortError> {
        if heads.values().any(|head| head.ends.is_some()) {
            let now = match time {
                Some(time) => time,
                None => self.server_time().await?,
            };
            heads.values_mut().for_each(|head| head.settle(now));
        }
        Ok(())
    }

    async fn ask(&self, call: &str, subjects: &[String], most: Most) -> Result<Answer, PortError> {
        let link = &self.core.link;
        let unavailable = |error: &dyn std::fmt::Display| link.failure(PortErrorKind::Unavailable, error);
        let inbox = link.client().new_inbox();
        let mut answers = link.client().subscribe(inbox.clone()).await.map_err(|error| unavailable(&error))?;
        let request = GetMany { multi_last: subjects, max_bytes: most.bytes, batch: most.messages };
        let request = serde_json::to_vec(&request).map_err(|error| link.failure(PortErrorKind::Other, error))?;
        let asked = link.client().publish_with_reply(call.to_owned(), inbox, request.into()).await;
        asked.map_err(|error| unavailable(&error))?;
        let mut messages = Vec::new();
        loop {
            let Some(Some(message)) = within(&link.base().clock, AGAIN, answers.next()).await else {
                return Ok(Answer::Silence);
            };
            match message.status.map_or(200, |status| status.as_u16()) {
                200 => messages.push(message),
                204 => {
                    let is_whole = header(&message, "Nats-Num-Pending") == Some("0");
                    return Ok(if is_whole { Answer::Whole(messages) } else { Answer::TooMuch });
                }
                404 if messages.is_empty() => return Ok(Answer::Whole(messages)),
                413 => return Ok(Answer::TooMuch),
                status if status == StatusCode::NO_RESPONDERS.as_u16() => {
                    return Err(unavailable(&"no server answers reads: was the stream deleted?"));
                }
                _ => return Err(link.unexpected("DIRECT.GET")),
            }
        }
    }

    /// Returns the subject, the number and the time of a message, and what it is of a record.
    fn parse_message(&self, message: Message) -> Result<(String, u64, u64, Head), PortError> {
        let unexpected = || self.core.link.unexpected("DIRECT.GET");
        let subject = header(&message, NATS_SUBJECT.as_ref()).ok_or_else(unexpected)?.to_owned();
        let number = header(&message, NATS_SEQUENCE.as_ref()).and_then(|text| text.parse().ok());
        let number = number.ok_or_else(unexpected)?;
        let at = header(&message, NATS_TIME_STAMP.as_ref()).and_then(nanoseconds).ok_or_else(unexpected)?;
        let body: Bytes = message.payload.clone();
        let head = Head::new(number, Some(at), |name| header(&message, name).map(str::to_owned), || Some(body));
        Ok((subject, number, at, head.ok_or_else(unexpected)?))
    }
}

fn header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    Some(message.headers.as_ref()?.get(name)?.as_str())
}
