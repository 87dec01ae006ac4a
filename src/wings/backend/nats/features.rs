//! What a server has since releases 2.11 and 2.12, if the stream of the store uses it.
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    api::Nothing,
    link::{Effect, Link},
    setup::version,
};
use crate::port::{Capabilities, Capability, PortError};

/// Settings of a stream that an earlier release of the server does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Features {
    /// `allow_atomic`: several messages, all or none.
    pub(super) batches: bool,
    /// `allow_msg_ttl`: the server removes a message after a time.
    pub(super) lives: bool,
    /// `allow_direct`: many messages are read as of one moment. Earlier servers read them one after
    /// the other.
    pub(super) snapshots: bool,
}

#[derive(Debug, Deserialize)]
struct Described {
    config: Map<String, Value>,
}

impl Features {
    /// Returns those of the server to which a handle is connected.
    pub(super) fn of_server(link: &Link) -> Self {
        let version = version(&link.client().server_info().version);
        let is_newer = version >= Some((2, 12, 0));
        Self { batches: is_newer, lives: version >= Some((2, 11, 0)), snapshots: is_newer }
    }

    /// Adds the capabilities of a store.
    pub(super) const fn grant(self, mut can: Capabilities) -> Capabilities {
        if self.lives {
            can = can.with(Capability::TimeToLive);
        }
        if self.batches {
            can = can.with(Capability::AtomicBatch).with(Capability::OrderedAppend);
        }
        can
    }

    /// Returns those that one of the two has.
    const fn or(self, other: Self) -> Self {
        Self {
            batches: self.batches || other.batches,
            lives: self.lives || other.lives,
            snapshots: self.snapshots || other.snapshots,
        }
    }

    fn of_stream(config: &Map<String, Value>) -> Self {
        let is_on = |setting| config.get(setting).and_then(Value::as_bool) == Some(true);
        let lives = is_on("allow_msg_ttl");
        let batches = lives && is_on("allow_atomic");
        Self { batches, lives, snapshots: batches && is_on("allow_direct") }
    }

    /// Returns those of a stream. One that an earlier release made, of the server or of the crate,
    /// is changed, if its leader is of the newer release, too.
    pub(super) async fn of(link: &Link, stream: &str) -> Result<Self, PortError> {
        let call = format!("STREAM.INFO.{stream}");
        let described = link.api(&call, &Nothing {}, Effect::Reads).await?;
        // Without an answer a handle would do without them for its life, beside others that have them.
        let Described { mut config } = described.map_err(|error| link.rejected("the stream cannot be read", &error))?;
        let (found, server) = (Self::of_stream(&config), Self::of_server(link));
        let wanted = found.or(server);
        // The release of the answering server, as a number: 1 is 2.11, 2 is 2.12.
        let level = config.get("metadata").and_then(|metadata| metadata.get("_nats.level")?.as_str()?.parse().ok());
        let needed = if wanted.batches { 2 } else { 1 };
        if found == wanted || level.unwrap_or(0) < needed {
            return Ok(found);
        }
        config.insert("allow_atomic".to_owned(), wanted.batches.into());
        config.insert("allow_msg_ttl".to_owned(), wanted.lives.into());
        config.insert("allow_direct".to_owned(), wanted.snapshots.into());
        let call = format!("STREAM.UPDATE.{stream}");
        let changed: Result<Described, _> = link.api(&call, &config, Effect::Once).await?;
        // Refused, the stream stays as it is, and what needs more is refused by name.
        Ok(changed.map_or(found, |changed| Self::of_stream(&changed.config)))
    }
}
