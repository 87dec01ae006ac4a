//! Checks of a server, each time a connection is made.
use std::{collections::HashMap, sync::LazyLock};

use redis::{Value, aio::MultiplexedConnection};

use super::{
    config::Target,
    connection,
    failure::{self, failed, failure, unexpected},
    script::{Call, Script},
};
use crate::port::{Capabilities, Capability, PortError, PortErrorKind};

/// Form of the stored data. A later release that changes it raises the number. Form 2 counts
/// crashes in the expiries of a message.
const FORM: u64 = 2;

/// The oldest version of Redis: 6.2 has `ZRANGE ... BYLEX` and `GETDEL`; scripts may write after
/// they read the time.
const OLDEST: (u32, u32) = (6, 2);

/// Settings with which each accepted write is on the disk, also while the file is rewritten, and
/// with which a damaged file is not loaded in part.
const DURABLE: [(&str, &str); 3] =
    [("appendfsync", "always"), ("no-appendfsync-on-rewrite", "no"), ("aof-load-truncated", "no")];

/// Properties of a server that passed the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    /// Text that names the data set.
    pub(super) identity: String,
    /// `true` if each write is on the disk before its answer.
    pub(super) is_durable: bool,
    /// `true` if no replica can take over without the last writes.
    pub(super) is_alone: bool,
}

impl Server {
    /// Returns the capabilities of this server that the other one lacks.
    pub(super) fn lost_in(&self, other: &Self) -> Vec<Capability> {
        let mut lost = Vec::new();
        if self.is_durable && !other.is_durable {
            lost.push(Capability::Durable);
        }
        if self.is_alone && !other.is_alone {
            lost.push(Capability::Linearizable);
        }
        lost
    }

    /// Adds the capabilities of this server to those of a port.
    pub(super) const fn grant(&self, mut can: Capabilities) -> Capabilities {
        if self.is_durable {
            can = can.with(Capability::Durable);
        }
        if self.is_alone {
            can = can.with(Capability::Linearizable);
        }
        can.with(Capability::Shared)
    }
}

/// Reads the server's state, and refuses it if a contract would not hold on it. A data set without
/// a name receives `new_identity`.
pub(super) async fn check(
    (target, prefix): (&Target, &str),
    connection: &mut MultiplexedConnection,
    new_identity: &str,
) -> Result<Server, PortError> {
    let mut info = redis::cmd("INFO");
    let info = text(target, connection, info.arg("everything"), "INFO").await?;
    let info = Info::parse(&info);
    info.check(target)?;
    let identity = identity((target, prefix), connection, new_identity).await?;
    let mut is_durable = info.is("aof_enabled", "1");
    for (name, value) in DURABLE {
        is_durable = is_durable && setting(target, connection, name).await?.as_deref() == Some(value);
    }
    Ok(Server { identity, is_durable, is_alone: info.is("connected_slaves", "0") })
}

async fn send(
    target: &Target,
    connection: &mut MultiplexedConnection,
    command: &redis::Cmd,
) -> Result<Value, PortError> {
    connection::send(connection, command).await.map_err(|error| failed(target, &error, false).error)
}

async fn text(
    target: &Target,
    connection: &mut MultiplexedConnection,
    command: &redis::Cmd,
    name: &str,
) -> Result<String, PortError> {
    let answer = send(target, connection, command).await?;
    redis::from_redis_value(answer).map_err(|_| unexpected(target, name))
}

/// Returns the value of a setting, or `None` if the server does not tell, as managed servers do.
async fn setting(
    target: &Target,
    connection: &mut MultiplexedConnection,
    name: &str,
) -> Result<Option<String>, PortError> {
    let mut get = redis::cmd("CONFIG");
    get.arg("GET").arg(name);
    match connection::send(connection, &get).await {
        Ok(answer) => {
            let pairs: HashMap<String, String> = redis::from_redis_value(answer).unwrap_or_default();
            Ok(pairs.into_values().next())
        }
        Err(error) => {
            let failed = failed(target, &error, false);
            // A refusal tells nothing about the setting.
            if matches!(failed.error.kind(), PortErrorKind::Denied | PortErrorKind::Other) {
                Ok(None)
            } else {
                Err(failed.error)
            }
        }
    }
}

/// Reads the form and the identity of the data set; writes them if there is none.
async fn identity(
    (target, prefix): (&Target, &str),
    connection: &mut MultiplexedConnection,
    new_identity: &str,
) -> Result<String, PortError> {
    static META: LazyLock<Script> = LazyLock::new(|| Script::writing(include_str!("lua/meta.lua")));
    let mut call = Call::new(&META, format!("{prefix}:meta"));
    call.arg(FORM).arg(new_identity);
    let request = Call::request(&[&call]);
    let mut answer = connection::request(connection, &request).await;
    if answer.as_ref().is_err_and(failure::is_unknown_script) {
        send(target, connection, &META.load()).await?;
        answer = connection::request(connection, &request).await;
    }
    let answer = answer.map_err(|error| failed(target, &error, false).error)?;
    let (form, identity): (u64, String) =
        redis::from_redis_value(answer).map_err(|_| unexpected(target, "HMGET meta"))?;
    if form > FORM {
        let message = format_args!(
            "the data at `{prefix}` has form {form}, and this release knows {FORM}: use the newer release"
        );
        return Err(failure(target, PortErrorKind::TooNew, message));
    }
    Ok(identity)
}

/// The answer to `INFO`.
struct Info<'a>(HashMap<&'a str, &'a str>);

impl<'a> Info<'a> {
    fn parse(text: &'a str) -> Self {
        Self(text.lines().filter_map(|line| line.trim_end().split_once(':')).collect())
    }

    fn get(&self, name: &str) -> &'a str {
        self.0.get(name).copied().unwrap_or_default()
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.get(name) == value
    }

    fn check(&self, target: &Target) -> Result<(), PortError> {
        use PortErrorKind::{Unavailable, Unsupported};
        let refuse = |kind, message: &str| Err(failure(target, kind, message));
        let version = self.get("redis_version");
        let mut parts = version.split('.').map_while(|part| part.parse::<u32>().ok());
        if (parts.next(), parts.next()) < (Some(OLDEST.0), Some(OLDEST.1)) {
            let (major, minor) = OLDEST;
            let message = format!("the server has version `{version}`: at least {major}.{minor} is needed");
            return refuse(Unsupported, &message);
        }
        if self.is("cluster_enabled", "1") || self.is("redis_mode", "cluster") {
            return refuse(
                Unsupported,
                "the server is a node of a cluster: use one server, or a primary with replicas",
            );
        }
        if self.is("redis_mode", "sentinel") {
            return refuse(Unsupported, "the server is a sentinel: connect to the primary that it names");
        }
        if self.is("loading", "1") {
            return refuse(Unavailable, "the server is loading its data");
        }
        if self.is("role", "slave") {
            return refuse(Unavailable, "the server is a read-only replica: connect to its primary");
        }
        let policy = self.get("maxmemory_policy");
        if !policy.is_empty() && policy != "noeviction" {
            let message = format!(
                "the server evicts keys (`maxmemory-policy` is `{policy}`), which loses data: set it to `noeviction`"
            );
            return refuse(Unsupported, &message);
        }
        Ok(())
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::{super::RedisConfig, *};

    #[test]
    fn a_server_that_would_break_a_contract_is_refused_by_name() {
        const FINE: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrole:master\r\nloading:0\r\n\
                            maxmemory_policy:noeviction\r\ncluster_enabled:0\r\n";
        let target = RedisConfig::at("redis://redis.internal").check().unwrap();
        let refusal = |info: &str| {
            let checked = Info::parse(info).check(&target);
            checked.err().map(|error| (error.kind(), error.to_string()))
        };
        assert_eq!(refusal(FINE), None);
        assert_eq!(refusal(&FINE.replace("7.0.15", "6.2.0")), None);
        let cases = [
            ("7.0.15", "6.0.16", PortErrorKind::Unsupported, "version `6.0.16`: at least 6.2"),
            ("7.0.15", "", PortErrorKind::Unsupported, "at least 6.2"),
            ("cluster_enabled:0", "cluster_enabled:1", PortErrorKind::Unsupported, "node of a cluster"),
            ("standalone", "sentinel", PortErrorKind::Unsupported, "is a sentinel"),
            ("loading:0", "loading:1", PortErrorKind::Unavailable, "is loading"),
            ("master", "slave", PortErrorKind::Unavailable, "connect to its primary"),
            ("noeviction", "allkeys-lru", PortErrorKind::Unsupported, "set it to `noeviction`"),
        ];
        for (from, to, kind, message) in cases {
            let (refused, text) = refusal(&FINE.replace(from, to)).unwrap();
            assert_eq!(refused, kind, "{text}");
            assert!(text.contains(message) && text.starts_with("redis: redis.internal:6379: "), "{text}");
        }
    }
}
