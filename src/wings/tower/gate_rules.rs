//! The rules of a gate: which requests may pass, and what of them.
use std::time::Duration;

use http::{HeaderMap, HeaderName, Method, header};
use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, human, require, require_some_time, setters},
    http::strict_path,
};

/// Settings of a [`GateLayer`](super::GateLayer).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct GateConfig {
    /// Maximum number of headers. 64 by default.
    pub max_headers: usize,
    /// Maximum size of all headers together, in bytes. 16 KiB by default.
    pub max_header_bytes: usize,
    /// Maximum size of path and query, in bytes. 2 KiB by default.
    pub max_uri: usize,
    /// Maximum number of requests with a body that are read, or in the inner service, at once.
    /// 1,024 by default.
    pub max_bodies: usize,
    /// Time in which a whole body must arrive. 10 s by default.
    #[serde(with = "human")]
    pub body_timeout: Duration,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self {
            max_headers: 64,
            max_header_bytes: 16 << 10,
            max_uri: 2 << 10,
            max_bodies: 1024,
            body_timeout: Duration::from_secs(10),
        }
    }
}

setters! {
    impl GateConfig {
        max_headers: usize,
        max_header_bytes: usize,
        max_uri: usize,
        max_bodies: usize,
        body_timeout: Duration,
    }
}

impl GateConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(self.max_headers > 0, "max_headers", "must be at least 1")?;
        require(self.max_header_bytes > 0, "max_header_bytes", "must be at least 1")?;
        require(self.max_uri > 0, "max_uri", "must be at least 1")?;
        require(self.max_bodies > 0, "max_bodies", "must be at least 1")?;
        require_some_time(self.body_timeout, "body_timeout")
    }
}

/// The routes of a gate, and the headers that pass. Everything else is refused or removed.
///
/// [`json`](Self::json), [`content_type`](Self::content_type) and [`max_body`](Self::max_body) are
/// about the route before them. A segment of a path in braces, such as `{id}`, stands for any one
/// segment.
///
/// ```
/// use steadfast::tower::{GateConfig, GateLayer, GateRules};
///
/// let rules = GateRules::new()
///     .post("/orders").json().max_body(64 << 10)
///     .get("/orders/{id}")
///     .keep_headers(["idempotency-key"]);
/// assert!(GateLayer::new(rules, GateConfig::default()).is_ok());
///
/// let no_limit = GateRules::new().post("/orders").json();
/// let refused = GateLayer::new(no_limit, GateConfig::default()).unwrap_err();
/// assert_eq!(refused.to_string(), "invalid `rules.POST /orders`: must have a `max_body`");
/// ```
#[derive(Debug, Clone, Default)]
pub struct GateRules {
    routes: Vec<Route>,
    kept: Vec<String>,
    /// `true` if a rule about a body came before any route.
    is_misplaced: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Route {
    method: Method,
    path: String,
    pub(super) content_type: Option<String>,
    pub(super) max_body: Option<usize>,
}

/// Headers by which hops before a service tell who or where a caller is: a caller could write them
/// itself. A name that ends with `-` stands for all that begin so.
const NEVER: [&str; 37] = [
    "forwarded",
    "x-forwarded",
    "x-forwarded-",
    "x-original-",
    "x-rewrite-",
    "x-host",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-real-ip",
    "x-client-",
    "client-",
    "x-cluster-client-ip",
    "x-envoy-",
    "true-client-ip",
    "fastly-client-ip",
    "x-azure-clientip",
    "x-azure-socketip",
    "cf-",
    "via",
    "remote-",
    "x-remote-",
    "x-user",
    "x-user-",
    "x-email",
    "x-groups",
    "x-auth-",
    "x-authenticated-",
    "x-webauth-",
    "x-ssl-",
    "ssl-client-",
    "x-arr-",
    "x-amzn-",
    "x-goog-",
    "x-ms-client-principal",
    "x-ms-client-principal-",
    "x-ms-token-",
];

/// Headers of one connection or of the frame of a body, which the next hop writes anew.
const OF_HOP: [HeaderName; 11] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::CONTENT_LENGTH,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
];

/// Headers that may come in several lines, which together are one list.
const LISTS: [HeaderName; 17] = [
    header::ACCEPT,
    header::ACCEPT_CHARSET,
    header::ACCEPT_ENCODING,
    header::ACCEPT_LANGUAGE,
    header::ACCESS_CONTROL_REQUEST_HEADERS,
    header::CACHE_CONTROL,
    header::CONTENT_LANGUAGE,
    header::COOKIE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::LINK,
    header::PRAGMA,
    header::SEC_WEBSOCKET_EXTENSIONS,
    header::SEC_WEBSOCKET_PROTOCOL,
    HeaderName::from_static("baggage"),
    HeaderName::from_static("prefer"),
    HeaderName::from_static("tracestate"),
];

/// A header that passes.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) name: HeaderName,
    /// `true` if its values are one list, which may come in several lines.
    pub(super) is_list: bool,
}

impl GateRules {
    /// Creates rules without a route, by which each request is refused.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a route.
    #[must_use]
    pub fn route(mut self, method: Method, path: impl Into<String>) -> Self {
        self.routes.push(Route { method, path: path.into(), content_type: None, max_body: None });
        self
    }

    /// Adds a route for `GET`, whose requests have no body.
    #[must_use]
    pub fn get(self, path: impl Into<String>) -> Self {
        self.route(Method::GET, path)
    }

    /// Adds a route for `POST`.
    #[must_use]
    pub fn post(self, path: impl Into<String>) -> Self {
        self.route(Method::POST, path)
    }

    /// Adds a route for `PUT`.
    #[must_use]
    pub fn put(self, path: impl Into<String>) -> Self {
        self.route(Method::PUT, path)
    }

    /// Adds a route for `DELETE`, whose requests have no body.
    #[must_use]
    pub fn delete(self, path: impl Into<String>) -> Self {
        self.route(Method::DELETE, path)
    }

    /// Demands a body of type `application/json`.
    #[must_use]
    pub fn json(self) -> Self {
        self.content_type("application/json")
    }

    /// Demands a body of this type. Its parameters, such as `charset`, are not compared.
    #[must_use]
    pub fn content_type(mut self, name: impl Into<String>) -> Self {
        match self.routes.last_mut() {
            Some(route) => route.content_type = Some(name.into().to_ascii_lowercase()),
            None => self.is_misplaced = true,
        }
        self
    }

    /// Allows a body of so many bytes.
    #[must_use]
    pub fn max_body(mut self, bytes: usize) -> Self {
        match self.routes.last_mut() {
            Some(route) => route.max_body = Some(bytes),
            None => self.is_misplaced = true,
        }
        self
    }

    /// Lets these headers pass, on all routes. `content-type` passes by itself where a route has a
    /// body; all others are removed.
    #[must_use]
    pub fn keep_headers(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.kept.extend(names.into_iter().map(Into::into));
        self
    }

    /// Checks the rules, and returns the headers that pass.
    pub(super) fn check(&self) -> Result<Vec<Kept>, ConfigError> {
        require(!self.is_misplaced, "rules", "must begin with a route: the rules of a body follow theirs")?;
        for (at, route) in self.routes.iter().enumerate() {
            let refuse = |rule| Err(ConfigError::new(format!("rules.{} {}", route.method, route.path), rule));
            let plain = route.path.replace(['{', '}'], "");
            if strict_path(&plain).is_err() || plain.contains('%') {
                return refuse("must be a strict path without escapes");
            }
            if route.path.split('/').any(|segment| segment.contains(['{', '}']) && !is_any(segment)) {
                return refuse("must have braces around whole segments alone, each with a name");
            }
            if self.routes[..at].iter().any(|other| other.method == route.method && other.overlaps(route)) {
                return refuse("must not be there twice");
            }
            let has_body = [Method::POST, Method::PUT, Method::PATCH].contains(&route.method);
            if route.max_body.is_none() && (has_body || route.content_type.is_some()) {
                return refuse("must have a `max_body`");
            }
        }
        let kept = self.kept.iter().map(|name| {
            let refuse = |rule| ConfigError::new(format!("keep_headers.{name}"), rule);
            let header = HeaderName::try_from(name).map_err(|_| refuse("must be the name of a header"))?;
            let is_never =
                |never: &&str| header.as_str() == *never || never.ends_with('-') && header.as_str().starts_with(*never);
            if NEVER.iter().any(is_never) {
                return Err(refuse("must not pass: a caller could write it itself"));
            }
            if OF_HOP.contains(&header) {
                return Err(refuse("must not pass: it is about one connection"));
            }
            if name.contains('_') {
                return Err(refuse("must not have `_`, which some programs take for `-`"));
            }
            Ok(header)
        });
        let mut kept = kept.collect::<Result<Vec<_>, _>>()?;
        kept.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        kept.dedup();
        Ok(kept.into_iter().map(|name| Kept { is_list: LISTS.contains(&name), name }).collect())
    }

    /// Returns the route of a request, or `Err(true)` if its path has routes for other methods
    /// alone.
    pub(super) fn find(&self, method: &Method, path: &str) -> Result<&Route, bool> {
        let mut is_known = false;
        for route in self.routes.iter().filter(|route| route.covers(path)) {
            if route.method == *method {
                return Ok(route);
            }
            is_known = true;
        }
        Err(is_known)
    }
}

impl Route {
    fn covers(&self, path: &str) -> bool {
        let (mut mine, mut theirs) = (self.path.split('/'), path.split('/'));
        loop {
            match (mine.next(), theirs.next()) {
                (None, None) => return true,
                (Some(mine), Some(theirs)) if mine == theirs || is_any(mine) && !theirs.is_empty() => {}
                _ => return false,
            }
        }
    }

    /// Returns `true` if a path may belong to both routes.
    fn overlaps(&self, other: &Self) -> bool {
        let (mine, theirs) = (self.path.split('/'), other.path.split('/'));
        mine.clone().count() == theirs.clone().count()
            && mine.zip(theirs).all(|(mine, theirs)| mine == theirs || is_any(mine) || is_any(theirs))
    }
}

/// Returns `true` for a segment that stands for any.
fn is_any(segment: &str) -> bool {
    let name = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    name.is_some_and(|name| !name.is_empty() && !name.contains(['{', '}', '*']))
}

/// Returns the size of all headers together.
pub(super) fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}
