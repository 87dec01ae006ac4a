//! One release, as a service renders its pages from it.
use std::{collections::HashMap, fmt, sync::Arc};

use super::{CacheControl, Manifest, SiteConfig, manifest::SiteFile};
use crate::sha256::{Digest, base64};

/// The release in effect, as one moment has it. One snapshot renders one page: then all of its
/// links are of one release.
pub struct Snapshot {
    number: u64,
    files: HashMap<String, Linked>,
    /// Entry points by their paths, with those of their compressed forms.
    entry_points: HashMap<String, CacheControl>,
    /// Objects of all releases that are kept, and if they have compressed forms.
    objects: HashMap<String, bool>,
}

/// The links to one file.
struct Linked {
    url: String,
    integrity: String,
    entry_point: Option<EntryPoint>,
}

/// A file that callers ask for by its own name. Its object is like all others: the service reads it
/// from the bucket, and answers with these headers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntryPoint {
    /// Name of its object.
    pub key: String,
    /// Address of its object.
    pub url: String,
    /// Value of `ETag`: the digest, in quotation marks.
    pub etag: String,
}

impl Snapshot {
    /// Creates a snapshot of a release, among those that are kept.
    pub(super) fn new<'a>(
        manifest: &Manifest,
        kept: impl IntoIterator<Item = &'a Arc<Manifest>>,
        config: &SiteConfig,
    ) -> Self {
        let mut snapshot = Self {
            number: manifest.number,
            files: HashMap::new(),
            entry_points: HashMap::new(),
            objects: HashMap::new(),
        };
        for file in kept.into_iter().flat_map(|manifest| &manifest.files) {
            for (key, _) in file.objects() {
                // A name of the bundler may have compressed forms in some of the releases.
                *snapshot.objects.entry(key).or_default() |= varies(file);
            }
        }
        for file in &manifest.files {
            let (key, path) = (file.key(), &file.path);
            let url = config.url(&key);
            let integrity = format!("sha256-{}", base64(&file.plain.digest));
            if file.is_entry_point {
                for (ending, content) in file.forms() {
                    let caching = CacheControl::EntryPoint { etag: etag(&content.digest), varies: varies(file) };
                    snapshot.entry_points.insert(format!("{path}{ending}"), caching);
                }
            }
            let etag = etag(&file.plain.digest);
            let entry_point = file.is_entry_point.then(|| EntryPoint { key, url: url.clone(), etag });
            snapshot.files.insert(path.clone(), Linked { url, integrity, entry_point });
        }
        snapshot
    }

    /// Returns the number of the release.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the address of a file, or `None` if the release has no such file.
    pub fn url(&self, path: &str) -> Option<&str> {
        Some(&self.files.get(path)?.url)
    }

    /// Returns the value of the attribute `integrity` of a link to a file, by which a browser
    /// refuses other bytes.
    pub fn integrity(&self, path: &str) -> Option<&str> {
        Some(&self.files.get(path)?.integrity)
    }

    /// Returns the object and the digest of an entry point.
    pub fn entry_point(&self, path: &str) -> Option<&EntryPoint> {
        self.files.get(path)?.entry_point.as_ref()
    }

    /// Returns how long a response may be kept, for a path below the base: the name of an object of
    /// any release that is kept, or the path of an entry point.
    pub fn cache_control(&self, path: &str) -> CacheControl {
        match (self.entry_points.get(path), self.objects.get(path)) {
            (Some(entry_point), _) => entry_point.clone(),
            (None, Some(varies)) => CacheControl::Immutable { varies: *varies },
            (None, None) => CacheControl::Unknown,
        }
    }

    /// Returns the paths of the files, in no order.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }
}

fn varies(file: &SiteFile) -> bool {
    file.brotli.is_some() || file.gzip.is_some()
}

fn etag(digest: &Digest) -> String {
    let digits: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("\"{digits}\"")
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("number", &self.number).field("files", &self.files.len()).finish()
    }
}
