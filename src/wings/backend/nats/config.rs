//! Settings of a connection to NATS.
use std::{fmt, time::Duration};

use async_nats::ServerAddr;
use serde::{Deserialize, Serialize};

use crate::{
    backend::{
        TlsConfig,
        common::settings::{self, Hidden, Secret},
    },
    backoff::BackoffConfig,
    config::{ConfigError, human, require, setters},
};

/// Settings of a [`Nats`](super::Nats).
///
/// `Debug` shows no secret: of the URL the servers alone, of credentials and an NKey at most a
/// path.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct NatsConfig {
    /// The servers, and the user or token: `nats://[USER:PASSWORD@|TOKEN@]HOST[:PORT]`, with
    /// further hosts of the cluster behind commas, each with or without the scheme and the user of
    /// the first. `tls://` connects with TLS. Special characters of the user, password and token
    /// are percent-encoded, such as `%40` for `@`.
    pub url: String,
    /// Credentials of a user in operator mode, as of hosted NATS: the text of a credentials file,
    /// with a JWT and a seed, or its path. A file is read at each connection. None by default; not
    /// together with a user of the [URL](field@Self::url) or an [`nkey`](field@Self::nkey).
    #[serde(default)]
    pub credentials: Option<String>,
    /// NKey of a user: the seed, which begins with `SU`, or the path of a file with it. A file is
    /// read at each connection. None by default.
    #[serde(default)]
    pub nkey: Option<String>,
    /// JetStream domain that holds the streams, if it is another one than that of the server to
    /// which the handle connects: that of the hub behind a leaf node. None by default.
    #[serde(default)]
    pub domain: Option<String>,
    /// First part of the names of all streams and subjects: 1 to 32 letters, digits, `_` and `-`.
    /// `steadfast` by default. Several prefixes of one account are independent.
    #[serde(default = "settings::name")]
    pub prefix: String,
    /// Time limit of a connection attempt to one server. 2 s by default. The servers of the URL
    /// are tried in random order until one answers.
    #[serde(default = "settings::connect_timeout", with = "human")]
    pub connect_timeout: Duration,
    /// Time limit of a request. 5 s by default.
    #[serde(default = "settings::request_timeout", with = "human")]
    pub request_timeout: Duration,
    /// TLS settings. Without them TLS is used if the URL begins with `tls:` or the server demands
    /// it, with the operating system's root certificates.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
    /// Delays between the attempts to restore a lost connection. The first attempt is made at once;
    /// later delays grow from 50 ms to 2 s by default.
    #[serde(default = "settings::reconnect")]
    pub reconnect: BackoffConfig,
    /// Number of servers that hold each new stream: 1, 3 or 5. By default 3 in a cluster, and 1 on
    /// a single server. Streams that exist stay as they are.
    #[serde(default)]
    pub replicas: Option<u8>,
    /// `true` if each read of a replicated store is confirmed by a majority of its servers, as by
    /// default. Without it a read takes one request, and the store is not
    /// [`Linearizable`](crate::port::Capability::Linearizable). A store on one server needs none.
    #[serde(default = "NatsConfig::confirmed_reads_default")]
    pub confirmed_reads: bool,
    /// Time for which a queue remembers a de-duplication id. Five minutes by default. With zero, a
    /// queue recognizes duplicates within one request.
    #[serde(default = "settings::window", with = "human")]
    pub deduplication_window: Duration,
}

setters! {
    impl NatsConfig {
        url: impl Into<String>,
        credentials: impl Into<Option<String>>,
        nkey: impl Into<Option<String>>,
        domain: impl Into<Option<String>>,
        prefix: impl Into<String>,
        connect_timeout: Duration,
        request_timeout: Duration,
        tls: impl Into<Option<TlsConfig>>,
        reconnect: BackoffConfig,
        replicas: impl Into<Option<u8>>,
        confirmed_reads: bool,
        deduplication_window: Duration,
    }
}

impl NatsConfig {
    /// Creates the default settings for the servers at this URL.
    ///
    /// ```
    /// use steadfast::backend::nats::NatsConfig;
    ///
    /// let config = NatsConfig::at("nats://app:secret@one.internal,two.internal").replicas(3);
    /// assert!(!format!("{config:?}").contains("secret"));
    /// ```
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            credentials: None,
            nkey: None,
            domain: None,
            prefix: settings::name(),
            connect_timeout: settings::connect_timeout(),
            request_timeout: settings::request_timeout(),
            tls: None,
            reconnect: settings::reconnect(),
            replicas: None,
            confirmed_reads: Self::confirmed_reads_default(),
            deduplication_window: settings::window(),
        }
    }

    const fn confirmed_reads_default() -> bool {
        true
    }

    pub(super) fn check(&self) -> Result<Target, ConfigError> {
        require(!self.prefix.is_empty(), "prefix", "must not be empty")?;
        require(self.prefix.len() <= 32, "prefix", "must be at most 32 bytes")?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        require(self.prefix.chars().all(is_plain), "prefix", "must consist of letters, digits, `_` and `-`")?;
        settings::check_timeouts(self.connect_timeout, self.request_timeout)?;
        require(matches!(self.replicas, None | Some(1 | 3 | 5)), "replicas", "must be 1, 3 or 5")?;
        self.reconnect.check().map_err(|error| error.within("reconnect"))?;
        let is_token = |text: &String| !text.is_empty() && text.chars().all(is_plain);
        require(self.domain.iter().all(is_token), "domain", "must consist of letters, digits, `_` and `-`")?;
        let mut target = Target::parse(&self.url)?;
        let has_user = target.login != Login::None;
        let alone = "must be the only identification: remove the user of `url`";
        if self.credentials.is_some() {
            require(
                !has_user && self.nkey.is_none(),
                "credentials",
                "must be the only identification: remove `nkey` and the user of `url`",
            )?;
            target.login = Login::Credentials;
        } else if self.nkey.is_some() {
            require(!has_user, "nkey", alone)?;
            target.login = Login::Nkey;
        }
        Ok(target)
    }

    /// Returns the start of the subjects of JetStream's API.
    pub(super) fn api(&self) -> String {
        match &self.domain {
            Some(domain) => format!("$JS.{domain}.API"),
            None => "$JS.API".to_owned(),
        }
    }
}

/// The servers that a URL names.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) servers: Vec<ServerAddr>,
    pub(super) login: Login,
    pub(super) is_tls: bool,
}

/// The identification.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Login {
    None,
    Token(String),
    User(String, String),
    /// By the setting of this name.
    Credentials,
    Nkey,
}

impl Target {
    /// Parses a URL. The error does not repeat it, because it may contain a password.
    fn parse(url: &str) -> Result<Self, ConfigError> {
        const FORM: &str = "must be `nats://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]..]`";
        const NO_QUERY: &str = "must have no query: further settings are fields of `NatsConfig`";
        let form = || ConfigError::new("url", FORM);
        let scheme = if url.starts_with("tls://") { "tls://" } else { "nats://" };
        let rest = url.strip_prefix(scheme).ok_or_else(form)?;
        let mut servers = Vec::new();
        let mut login = Login::None;
        for (i, part) in rest.split(',').enumerate() {
            let part = part.strip_prefix(scheme).unwrap_or(part);
            if part.contains("://") {
                return Err(form());
            }
            settings::check_login(part, "url")?;
            require(!part.contains(['?', '#']), "url", NO_QUERY)?;
            let (own, host) = Login::split(part).ok_or_else(form)?;
            if i == 0 {
                login = own;
            } else {
                let rule = "must have the same user and password at each server, or at the first one alone";
                require(own == Login::None || own == login, "url", rule)?;
            }
            let host = host.trim_end_matches('/');
            let parsed = (!host.is_empty() && !host.contains('/')).then(|| format!("{scheme}{host}").parse());
            let parsed: ServerAddr = parsed.ok_or_else(form)?.map_err(|_| form())?;
            require(!parsed.host().is_empty(), "url", "must name a host")?;
            settings::check_port(parsed.port(), "url")?;
            servers.push(parsed);
        }
        Ok(Self { servers, login, is_tls: scheme == "tls://" })
    }

    /// Returns the servers' addresses as error messages show them.
    pub(super) fn address(&self) -> String {
        let one = |server: &ServerAddr| settings::address(server.host(), server.port());
        self.servers.iter().map(one).collect::<Vec<_>>().join(",")
    }
}

impl Login {
    /// Splits the identification from a host; `None` if it is not valid.
    fn split(part: &str) -> Option<(Self, &str)> {
        let Some((login, host)) = part.split_once('@') else { return Some((Self::None, part)) };
        let text = |text: &str| unescaped(text).filter(|text| !text.is_empty());
        let login = match login.split_once(':') {
            Some((user, password)) => Self::User(text(user)?, text(password)?),
            None => Self::Token(text(login)?),
        };
        Some((login, host))
    }
}

/// Returns a text whose `%XX` are decoded; `None` if it is not valid.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("NatsConfig");
        out.field("url", &Hidden(Target::parse(&self.url).ok().map(|target| target.address())));
        out.field("credentials", &self.credentials.as_deref().map(Secret));
        out.field("nkey", &self.nkey.as_deref().map(Secret));
        out.field("domain", &self.domain).field("prefix", &self.prefix);
        out.field("connect_timeout", &self.connect_timeout).field("request_timeout", &self.request_timeout);
        out.field("tls", &self.tls).field("reconnect", &self.reconnect).field("replicas", &self.replicas);
        out.field("confirmed_reads", &self.confirmed_reads);
        out.field("deduplication_window", &self.deduplication_window).finish()
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_parsed_and_its_password_is_never_shown() {
        let target = |url: &str| NatsConfig::at(url).check();
        let full = target("tls://app:s%40cret@one.internal:7000,two.internal").unwrap();
        assert_eq!((full.address().as_str(), full.is_tls), ("one.internal:7000,two.internal:4222", true));
        assert!(full.login == Login::User("app".to_owned(), "s@cret".to_owned()));
        assert!(target("nats://s3cret@x").unwrap().login == Login::Token("s3cret".to_owned()));
        assert_eq!(target("nats://[::1]").unwrap().address(), "[::1]:4222");
        let urls = [
            "http://s:secret@x",
            "nats://u:secret@",
            "nats://u:secret@x/y",
            "nats://u:secret@x?secret=1",
            "nats://u:secret@x,",
        ];
        for url in urls {
            let Err(error) = target(url) else { panic!("{url} was accepted") };
            assert!(error.field() == "url" && !error.to_string().contains("secret"), "{error}");
            assert!(!format!("{:?}", NatsConfig::at(url)).contains("u:secret"), "{url}");
        }
    }

    #[test]
    fn a_setting_that_breaks_a_rule_is_named() {
        let valid = || NatsConfig::at("nats://localhost");
        valid().check().unwrap();
        let refused = [
            (valid().prefix(""), "prefix"),
            (valid().prefix("a.b"), "prefix"),
            (valid().prefix("a".repeat(33)), "prefix"),
            (valid().connect_timeout(Duration::ZERO), "connect_timeout"),
            (valid().request_timeout(Duration::ZERO), "request_timeout"),
            (valid().replicas(2), "replicas"),
            (valid().domain("a.b".to_owned()), "domain"),
            (valid().domain(String::new()), "domain"),
            (valid().url("nats://u:p@localhost").nkey("SU".to_owned()), "nkey"),
            (valid().url("nats://u:p@localhost").credentials("x".to_owned()), "credentials"),
            (valid().nkey("SU".to_owned()).credentials("x".to_owned()), "credentials"),
            (valid().reconnect(BackoffConfig::default().factor(0.0)), "reconnect.factor"),
        ];
        for (config, field) in refused {
            assert_eq!(config.check().err().unwrap().field(), field);
        }
        let parsed: NatsConfig = toml::from_str("url = \"nats://localhost\"").unwrap();
        assert_eq!(parsed, valid());
        let text = "url = \"nats://localhost\"\ncredentials = \"/run/app.creds\"\ndomain = \"hub\"";
        let set = valid().credentials("/run/app.creds".to_owned()).domain("hub".to_owned());
        assert_eq!(toml::from_str::<NatsConfig>(text).unwrap(), set);
        let seed = valid().nkey("SUAPASSWORD".to_owned());
        assert!(!format!("{seed:?}").contains("SUAPASSWORD") && format!("{set:?}").contains("/run/app.creds"));
    }
}
