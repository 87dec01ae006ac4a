//! The files of a release, before it is published.
use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;

use super::{
    SiteError,
    manifest::{BROTLI, Content, GZIP, SiteFile},
    pattern::matches,
};
use crate::config::ConfigError;

/// The files of a release, all in memory: what is published is what was read. A clone shares them.
#[derive(Clone, Default)]
pub struct Release {
    files: BTreeMap<String, Bytes>,
    entry_points: Vec<String>,
    immutable: Vec<String>,
}

/// The files of a release as a manifest lists them, and the bytes by the names of their objects.
pub(super) type Planned = (Vec<SiteFile>, HashMap<String, Bytes>);

impl Release {
    /// Creates a release without files.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads all files below a directory. It blocks the thread. Links are followed within the
    /// directory.
    ///
    /// # Errors
    /// [`SiteError::File`]: a file cannot be read, its name is no UTF-8, it is a pipe or the like,
    /// or it is a link that leads out of the directory or back to a directory that contains it.
    pub fn from_dir(dir: impl AsRef<Path>) -> Result<Self, SiteError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |error| SiteError::File { path, source: Arc::new(error) }
        };
        let root = fs::canonicalize(dir.as_ref()).map_err(at(dir.as_ref()))?;
        let mut files = BTreeMap::new();
        // Directories to read: the real paths of those on the way and of itself, and its path within
        // the release.
        let mut open = vec![(vec![root.clone()], String::new())];
        while let Some((way, within)) = open.pop() {
            let dir = &way[way.len() - 1];
            for entry in fs::read_dir(dir).map_err(at(dir))? {
                let path = entry.map_err(at(dir))?.path();
                let name = path.file_name().and_then(|name| name.to_str());
                let name = name.ok_or_else(|| at(&path)(io::Error::other("its name is no UTF-8")))?;
                let within = format!("{within}{name}");
                let real = inside(&root, &path).map_err(at(&path))?;
                if real.is_file() {
                    let content = fs::read(&real).map_err(at(&path))?;
                    files.insert(within, content.into());
                } else if !real.is_dir() {
                    return Err(at(&path)(io::Error::other("it is no file")));
                } else if dir.starts_with(&real) || way.contains(&real) {
                    return Err(at(&path)(io::Error::other("it leads back to a directory that contains it")));
                } else {
                    open.push(([&way[..], &[real]].concat(), within + "/"));
                }
            }
        }
        Ok(Self { files, ..Self::default() })
    }

    /// Adds or replaces a file.
    #[must_use]
    pub fn file(mut self, path: impl Into<String>, content: impl Into<Bytes>) -> Self {
        self.files.insert(path.into(), content.into());
        self
    }

    /// Sets the files that callers ask for by their own names, such as pages. Each pattern must
    /// match a file; `*` stands for any text within a segment of a path, and `**` for any segments.
    #[must_use]
    pub fn entry_points(mut self, patterns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.entry_points = patterns.into_iter().map(Into::into).collect();
        self
    }

    /// Adds files whose names have a digest already, by the bundler, and are kept. All files that
    /// others refer to must be such. The pattern must match a file.
    #[must_use]
    pub fn immutable(mut self, pattern: impl Into<String>) -> Self {
        self.immutable.push(pattern.into());
        self
    }

    /// Returns the paths of the files, in their order.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Checks the release, and names the objects of its files.
    pub(super) fn planned(&self) -> Result<Planned, ConfigError> {
        if self.files.is_empty() {
            return Err(ConfigError::new("release", "must have a file"));
        }
        for (pattern, field) in
            self.entry_points.iter().map(|pattern| (pattern, "entry_points")).chain(self.immutable_patterns())
        {
            if !self.files.keys().any(|path| matches(pattern, path)) {
                return Err(ConfigError::new(field, format!("must match a file, and `{pattern}` does not")));
            }
        }
        let (mut files, mut bytes) = (Vec::new(), HashMap::new());
        for (path, content) in &self.files {
            check_path(path)?;
            if self.is_compressed_form(path) {
                continue;
            }
            let file = self.described(path, content)?;
            let key = file.key();
            for (ending, _) in file.forms() {
                let form = &self.files[&format!("{path}{ending}")];
                if bytes.insert(format!("{key}{ending}"), form.clone()).is_some() {
                    let rule = format!("must not have two files with the name `{key}{ending}`");
                    return Err(ConfigError::new("release", rule));
                }
            }
            files.push(file);
        }
        bytes.keys().try_for_each(|key| check_key(key, &bytes))?;
        Ok((files, bytes))
    }

    fn immutable_patterns(&self) -> impl Iterator<Item = (&String, &'static str)> {
        self.immutable.iter().map(|pattern| (pattern, "immutable"))
    }

    /// Returns `true` for a file that lies compressed beside itself.
    fn is_compressed_form(&self, path: &str) -> bool {
        let plain = path.strip_suffix(BROTLI).or_else(|| path.strip_suffix(GZIP));
        plain.is_some_and(|plain| self.files.contains_key(plain))
    }

    fn described(&self, path: &str, content: &Bytes) -> Result<SiteFile, ConfigError> {
        let any = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, path));
        let (is_immutable, is_entry_point) = (any(&self.immutable), any(&self.entry_points));
        if is_immutable && is_entry_point {
            let rule = format!("must not match `{path}`, which is immutable");
            return Err(ConfigError::new("entry_points", rule));
        }
        let form = |ending| self.files.get(&format!("{path}{ending}")).map(|bytes| Content::of(bytes));
        let forms = (Content::of(content), form(BROTLI), form(GZIP));
        Ok(SiteFile::new(path, (is_immutable, is_entry_point), forms))
    }
}

impl std::fmt::Debug for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Release").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

/// Returns the real path of a file, if it lies below the root.
fn inside(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let real = fs::canonicalize(path)?;
    if real.starts_with(root) { Ok(real) } else { Err(io::Error::other("it leads out of the directory")) }
}

/// Refuses a path that a bucket, a URL or a file system reads in another way.
fn check_path(path: &str) -> Result<(), ConfigError> {
    let is_plain = |segment: &str| !matches!(segment, "" | "." | "..");
    let has_only = |next: char| !next.is_control() && !"\\%?#*:\"<>|".contains(next);
    if path.split('/').all(is_plain) && path.chars().all(has_only) {
        return Ok(());
    }
    let rule = format!("must have paths of plain segments, without \\ % ? # * : \" < > |, and not {path:?}");
    Err(ConfigError::new("release", rule))
}

/// Refuses the name of an object that a bucket refuses: a cloud's has 1,024 bytes at most, and the
/// segment of a folder's 255, of which a write takes some. A folder has no file that contains
/// another.
fn check_key(key: &str, all: &HashMap<String, Bytes>) -> Result<(), ConfigError> {
    let is_short = key.len() <= 1_024 && key.split('/').all(|segment| segment.len() <= 240);
    if is_short && !key.match_indices('/').any(|(slash, _)| all.contains_key(&key[..slash])) {
        return Ok(());
    }
    let rule = "must have names of at most 1,024 bytes, with segments of 240, and no file that is another's directory";
    Err(ConfigError::new("release", format!("{rule}: not `{key}`")))
}
