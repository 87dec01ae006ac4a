//! Checks of a server, and the streams that the ports need.
use std::time::Duration;

use async_nats::HeaderMap;
use serde::de::IgnoredAny;

use super::{
    api::{
        ApiError, EXPECTED, GetMessage, GotMessage, Metadata, NO_CLUSTER, NO_MESSAGE, NO_STREAM, NewStream, Nothing,
        Purge, SEQUENCE_NOT_FOUND, STREAM_EXISTS, StreamInfo,
    },
    features::Features,
    link::{Effect, Link},
};
use crate::{
    port::{Capabilities, Capability, PortError, PortErrorKind},
    time::nanos,
};

/// Form of the stored data. A later release that changes it raises the number. In form 1 a row was
/// one token of a subject.
const FORM: u32 = 2;
/// Form of the messages of a queue. Form 1 was a log of calls.
const WORK_FORM: u32 = 2;

/// The oldest version of the server: 2.10 has metadata of streams, and the time in their state.
const OLDEST: (u32, u32, u32) = (2, 10, 0);

/// Properties of a stream that passed the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stream {
    pub(super) name: String,
    /// Text that distinguishes the data from any other; empty for the store's.
    pub(super) identity: String,
    /// Number of servers that hold it.
    pub(super) replicas: u8,
    /// Time for which ids of messages are remembered.
    pub(super) window: Duration,
    /// `true` if it takes atomic batches.
    pub(super) is_atomic: bool,
}

impl Stream {
    /// Adds the capabilities of the stream to those of a port.
    pub(super) const fn grant(&self, can: Capabilities) -> Capabilities {
        // The server writes a message to its file before it answers.
        can.with(Capability::Durable).with(Capability::Shared)
    }
}

/// A stream that a port needs.
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) subjects: Vec<String>,
    pub(super) retention: Retention,
    /// Time for which ids of messages are remembered, if the port uses them.
    pub(super) duplicate_window: Option<Duration>,
    /// Number of messages that are kept of each subject; -1 is all.
    pub(super) per_subject: i64,
    /// Name of the queue in the stream.
    pub(super) queue: &'a str,
    /// The place at which handles agree on the identity of a new stream; without one it has none.
    pub(super) agreement: Option<Agreement<'a>>,
}

impl<'a> Wanted<'a> {
    /// Returns a stream of records, of which each subject has one.
    pub(super) fn plain(name: &'a str, subjects: String, retention: Retention) -> Self {
        let subjects = vec![subjects];
        Self { name, subjects, retention, duplicate_window: None, per_subject: 1, queue: "", agreement: None }
    }
}

/// The messages that a stream keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retention {
    /// All of them.
    All,
    /// Those that no receiver has acknowledged.
    Work,
    /// Those of at most this age.
    Young(Duration),
}

impl Retention {
    const fn name(self) -> &'static str {
        match self {
            Self::Work => "workqueue",
            Self::All | Self::Young(_) => "limits",
        }
    }

    const fn max_age(self) -> u64 {
        match self {
            Self::Young(age) => nanos(age),
            Self::All | Self::Work => 0,
        }
    }

    const fn form(self) -> u32 {
        match self {
            Self::Work => WORK_FORM,
            Self::All | Self::Young(_) => FORM,
        }
    }
}

/// A subject of the store's stream. Its message is the identity of a stream that is being created.
///
/// A cluster before version 2.11.9 that gets two requests at the same moment, to create one stream
/// with different settings, carries out both: the stream has the settings of the second, and its
/// creators have different answers (seen on 2.10.27). So handles send equal settings.
pub(super) struct Agreement<'a> {
    pub(super) store: &'a str,
    pub(super) subject: String,
}

/// Refuses a server on which a contract would not hold.
pub(super) fn check_server(link: &Link) -> Result<(), PortError> {
    let info = link.client().server_info();
    check_version(&info.version).map_err(|message| link.failure(PortErrorKind::Unsupported, message))?;
    if !info.headers {
        return Err(link.failure(PortErrorKind::Unsupported, "the server passes no headers: allow them"));
    }
    Ok(())
}

/// Returns the three numbers of a version. One that is missing is 0.
pub(super) fn version(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.trim_start_matches('v').split(['.', '-']).map_while(|part| part.parse().ok());
    Some((parts.next()?, parts.next()?, parts.next().unwrap_or_default()))
}

fn check_version(text: &str) -> Result<(), String> {
    if version(text) < Some(OLDEST) {
        let (major, minor, _) = OLDEST;
        return Err(format!("the server has version `{text}`: at least {major}.{minor} is needed"));
    }
    Ok(())
}

/// Returns the stream; creates it if it does not exist.
pub(super) async fn stream(link: &Link, wanted: &Wanted<'_>) -> Result<Stream, PortError> {
    let found = find(link, wanted.name).await?;
    let info = match found {
        Some(info) => info,
        None => create(link, wanted).await?,
    };
    check_stream(link, wanted, &info)?;
    let StreamInfo { config, .. } = info;
    Ok(Stream {
        name: wanted.name.to_owned(),
        identity: config.metadata.identity,
        replicas: config.num_replicas.max(1),
        window: Duration::from_nanos(config.duplicate_window),
        is_atomic: config.allow_atomic,
    })
}

/// Returns the stream as it is, or `None` if there is none.
pub(super) async fn find(link: &Link, name: &str) -> Result<Option<StreamInfo>, PortError> {
    let call = format!("STREAM.INFO.{name}");
    match link.api(&call, &Nothing {}, Effect::Reads).await? {
        Ok(info) => Ok(Some(info)),
        Err(error) if error.err_code == NO_STREAM => Ok(None),
        Err(error) => Err(link.rejected("the stream cannot be read", &error)),
    }
}

async fn create(link: &Link, wanted: &Wanted<'_>) -> Result<StreamInfo, PortError> {
    let is_cluster = link.client().server_info().cluster.is_some();
    let replicas = link.base().config.replicas.unwrap_or(if is_cluster { 3 } else { 1 });
    let agreed = match &wanted.agreement {
        Some(agreement) => Some((agreement, agreement.agree(link).await?)),
        None => None,
    };
    let metadata = Metadata {
        form: wanted.retention.form().to_string(),
        identity: agreed.as_ref().map(|(_, (identity, _))| identity.clone()).unwrap_or_default(),
        queue: wanted.queue.to_owned(),
    };
    let features = Features::of_server(link);
    let mut stream = NewStream {
        name: wanted.name,
        subjects: &wanted.subjects,
        storage: "file",
        retention: wanted.retention.name(),
        // A stream that is full refuses writes. The other policy deletes old messages.
        discard: "new",
        max_msgs_per_subject: wanted.per_subject,
        num_replicas: replicas,
        max_age: wanted.retention.max_age(),
        duplicate_window: wanted.duplicate_window.map(nanos),
        allow_atomic: features.batches,
        allow_msg_ttl: features.lives && wanted.retention == Retention::All,
        allow_direct: features.snapshots && wanted.retention == Retention::All,
        metadata,
    };
    // A cluster does not answer some of the requests that create one stream at the same moment. A
    // repetition finds the stream: it creates no second one.
    let call = format!("STREAM.CREATE.{}", wanted.name);
    let mut created = link.api(&call, &stream, Effect::Reads).await?;
    if created.as_ref().is_err_and(|error: &ApiError| error.err_code == NO_CLUSTER)
        && link.base().config.replicas.is_none()
    {
        // A leaf node has the name of a cluster, too, and the streams of its hub are on one server.
        stream.num_replicas = 1;
        created = link.api(&call, &stream, Effect::Reads).await?;
    }
    let created = match created {
        Ok(info) => info,
        // Another handle was faster, with an identity of its own or another number of replicas.
        Err(error) if error.err_code == STREAM_EXISTS => {
            let found = find(link, wanted.name).await?;
            found.ok_or_else(|| link.rejected(CREATES, &error))?
        }
        Err(error) => return Err(link.rejected(CREATES, &error)),
    };
    if let Some((agreement, (_, number))) = agreed {
        agreement.end(link, number).await;
    }
    Ok(created)
}

const CREATES: &str = "the stream cannot be created";

impl Agreement<'_> {
    /// Returns the identity and the number of its message: those of the first handle.
    async fn agree(&self, link: &Link) -> Result<(String, u64), PortError> {
        let entropy = &link.base().entropy;
        let identity = entropy.id();
        let get = GetMessage { last_by_subj: Some(&self.subject), ..GetMessage::default() };
        loop {
            let mut is_first = HeaderMap::new();
            is_first.insert(EXPECTED, "0");
            match link.store(self.subject.clone(), Some(is_first), identity.clone().into()).await? {
                Ok(number) => return Ok((identity, number)),
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(link.rejected(CREATES, &error)),
            }
            let call = format!("STREAM.MSG.GET.{}", self.store);
            match link.api::<GotMessage>(&call, &get, Effect::Reads).await? {
                Ok(got) => {
                    let identity = got.message.body().and_then(|body| String::from_utf8(body.into()).ok());
                    return Ok((identity.ok_or_else(|| link.unexpected(&call))?, got.message.seq));
                }
                // The stream was created meanwhile: it refuses another identity.
                Err(error) if matches!(error.err_code, NO_MESSAGE | SEQUENCE_NOT_FOUND) => {}
                Err(error) => return Err(link.rejected(CREATES, &error)),
            }
        }
    }

    /// Removes the message, so that the stream has another identity if it is created anew.
    async fn end(&self, link: &Link, seq: u64) {
        let call = format!("STREAM.PURGE.{}", self.store);
        let purge = Purge { filter: Some(&self.subject), seq: Some(seq + 1) };
        // A message that stays is used again.
        let _ = link.api::<IgnoredAny>(&call, &purge, Effect::Writes).await;
    }
}

/// Refuses a stream on which a contract would not hold.
fn check_stream(link: &Link, wanted: &Wanted<'_>, info: &StreamInfo) -> Result<(), PortError> {
    let config = &info.config;
    let refuse = |kind, message: String| Err(link.failure(kind, message));
    let name = wanted.name;
    let known = wanted.retention.form();
    match config.metadata.form.parse::<u32>() {
        Ok(form) if form == known => {}
        Ok(form) if form < known => {
            let message = format!(
                "the stream `{name}` has form {form}, of an earlier release, and this release reads {known} alone: choose another `prefix`, or delete the stream"
            );
            return refuse(PortErrorKind::Unsupported, message);
        }
        Ok(form) => {
            let message =
                format!("the stream `{name}` has form {form}, and this release knows {known}: use the newer release");
            return refuse(PortErrorKind::TooNew, message);
        }
        Err(_) => {
            let message = format!("the stream `{name}` is another program's: choose another `prefix`");
            return refuse(PortErrorKind::Corrupt, message);
        }
    }
    if config.metadata.queue != wanted.queue {
        let message = format!("the stream `{name}` is of the queue {:?}: choose another name", config.metadata.queue);
        return refuse(PortErrorKind::Corrupt, message);
    }
    let changed = [
        (config.retention != wanted.retention.name(), "retention", wanted.retention.name()),
        (config.storage != "file", "storage", "file"),
        (config.discard != "new", "discard", "new"),
        (config.max_age != 0 && wanted.retention.max_age() == 0, "max_age", "0"),
        (config.max_msgs > 0, "max_msgs", "-1"),
        (config.max_msgs_per_subject != wanted.per_subject, "max_msgs_per_subject", "as it was created"),
    ];
    match changed.into_iter().find(|(is_changed, ..)| *is_changed) {
        Some((_, setting, value)) => {
            let message =
                format!("`{setting}` of the stream `{name}` was changed, which loses data: set it to {value}");
            refuse(PortErrorKind::Unsupported, message)
        }
        None => Ok(()),
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_old_server_is_refused_by_its_version() {
        for version in ["2.10.0", "2.10.27", "2.11.4", "2.12.0-beta.1", "v3.0.0"] {
            assert_eq!(check_version(version), Ok(()), "{version}");
        }
        for version in ["2.9.10", "1.4.1", "", "x"] {
            let refused = check_version(version).unwrap_err();
            assert!(refused.contains(&format!("`{version}`: at least 2.10")), "{refused}");
        }
    }
}
