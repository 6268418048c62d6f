//! The sources of values: the process's environment and configuration files.

use super::{Config, Origin, file, nearest, unreadable, variables};
use crate::error::Error;
use crate::plugin::env::{self, EnvPlugin};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

/// The file for all users.
const SYSTEM_FILE: &str = "/etc/nccl.conf";

/// Prefixes and names that begin like NCCL's but belong to other software: nccl-tests, plugins,
/// their examples, frameworks, builds and containers.
const FOREIGN: &[&str] = &[
    "NCCL_TESTS_",
    "NCCL_INSPECTOR_",
    "NCCL_TUNER_CONFIG_FILE",
    "NCCL_ENV_CONFIG_FILE",
    "NCCL_PROFILE_",
    "NCCL_UCX_",
    "NCCL_SHARP_",
    "NCCL_FASTRAK_",
    "NCCL_PLUGIN_P2P",
    "NCCL_IBEXT_DISABLE",
    "NCCL_GPUDIRECTTCPX_",
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT",
    "NCCL_VERSION",
    "NCCL_ROOT",
    "NCCL_HOME",
    "NCCL_INCLUDE_DIR",
    "NCCL_LIB",
    "OXCCL_TEST_",
];

/// Returns whether the program has rights that its caller does not have (set-user-id and the like).
fn secure() -> bool {
    // SAFETY: the function takes any number and only reads the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns whether a variable may be used. A program with more rights than its caller takes no
/// paths from the caller, neither of files nor of plugins.
fn admitted(name: &str, secure: bool) -> bool {
    let path = name.ends_with("_FILE") || name.ends_with("_PLUGIN") || name == "OXCCL_RENDEZVOUS";
    !(secure && path)
}

/// Reads a variable that belongs to a launcher (`OMPI_…`, `SLURM_…`) or to CUDA, not to this
/// library.
pub(crate) fn foreign_variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Config {
    /// Puts the variables of files into the environment, where plugins look for theirs, as NCCL
    /// does; before the first plugin is looked for, as libraries may read them while they are
    /// loaded.
    pub(crate) fn export_files(&self) {
        static EXPORTED: Once = Once::new();
        let missing = |(name, _): &&(String, String)| std::env::var_os(name).is_none();
        EXPORTED.call_once(|| {
            for (name, value) in self.report.of_files.iter().filter(missing) {
                // SAFETY: Rust's own readers take std's lock. Others, such as C's `getenv` in
                // another thread, may meet the change: only programs with such a file run this,
                // once, as the first communicator is made, and they all do with NCCL.
                unsafe { std::env::set_var(name, value) };
            }
        });
    }
}

/// All sources of values, as they were at one moment.
#[derive(Default)]
pub(super) struct Sources {
    environment: BTreeMap<String, String>,
    /// The files, the most important one first.
    files: Vec<(Arc<str>, file::Parsed)>,
    warnings: Vec<String>,
    unreadable: Vec<Error>,
    /// The names of variables whose values were refused before they were read, and the reasons.
    refused: Vec<(String, String)>,
    /// The plugin that answers for all variables, if there is one.
    plugin: Option<&'static EnvPlugin>,
}

impl Sources {
    pub(super) fn of_process() -> Self {
        let secure = secure();
        let home = if secure { None } else { std::env::home_dir() };
        let mut sources =
            Self::new(std::env::vars_os(), secure, home.as_deref(), Path::new(SYSTEM_FILE));
        // A plugin may pass on what the caller has in the environment.
        if !secure {
            let variable = sources.lookup("NCCL_ENV_PLUGIN").map(|(name, _)| name);
            sources.plugin = env::plugin(variable.as_deref());
        }
        sources
    }

    fn new(
        environment: impl Iterator<Item = (OsString, OsString)>,
        secure: bool,
        home: Option<&Path>,
        system: &Path,
    ) -> Self {
        let mut sources = Self::default();
        for (name, value) in environment {
            let bytes = name.as_encoded_bytes();
            if !bytes.starts_with(b"NCCL_") && !bytes.starts_with(b"OXCCL_") {
                continue;
            }
            let name = name.to_string_lossy().into_owned();
            match value.into_string() {
                _ if !admitted(&name, secure) => {
                    sources.ignore(name, "this program has more rights than its caller");
                }
                Ok(value) => drop(sources.environment.insert(name, value)),
                Err(value) if variables().any(|v| v.is_own() && v.name == name) => {
                    let text = value.to_string_lossy();
                    let error = unreadable(&name, &text, &Origin::Environment, "text in UTF-8");
                    sources.refused.push((name, error.to_string()));
                    sources.unreadable.push(error);
                }
                Err(_) => sources.ignore(name, "it is not UTF-8"),
            }
        }
        match sources.environment.get("NCCL_CONF_FILE").filter(|path| !path.is_empty()) {
            Some(path) => sources.add(&PathBuf::from(path), true),
            None => home.into_iter().for_each(|h| sources.add(&h.join(".nccl.conf"), false)),
        }
        sources.add(system, false);
        sources
    }

    /// Leaves out a variable of the environment, with a warning.
    fn ignore(&mut self, name: String, why: &str) {
        let text = format!("{name} is ignored: {why}");
        self.warnings.push(text.clone());
        self.refused.push((name, text));
    }

    /// Adds a file. The file may be missing, unless the user asked for it.
    fn add(&mut self, path: &Path, asked_for: bool) {
        let name: Arc<str> = path.display().to_string().into();
        match file::read(path) {
            Ok(Some(parsed)) => {
                let complaints = parsed.complaints.iter();
                self.warnings.extend(complaints.map(|(line, why)| format!("{name}:{line}: {why}")));
                self.files.push((name, parsed));
            }
            Ok(None) if !asked_for => {}
            Ok(None) => self.warnings.push(format!("NCCL_CONF_FILE={name}: no such file")),
            Err(why) => self.warnings.push(why),
        }
    }

    fn lookup(&self, name: &str) -> Option<(String, Origin)> {
        if let Some(plugin) = self.plugin
            && let Ok(value) = plugin.get(name)
        {
            // A plugin that was written for NCCL may not know this library's own variables.
            if value.is_some() || name.starts_with("NCCL_") {
                return value.map(|value| (value, Origin::Plugin(plugin.label.as_str().into())));
            }
        }
        if let Some(value) = self.environment.get(name) {
            return Some((value.clone(), Origin::Environment));
        }
        self.files.iter().find_map(|(path, parsed)| {
            let entry = parsed.entries.iter().find(|entry| entry.name == name)?;
            let origin = Origin::File { path: path.clone(), line: entry.line };
            Some((entry.value.clone(), origin))
        })
    }

    /// Returns the variables of files that the environment lacks; none where a plugin answers for
    /// all variables.
    fn of_files(&self) -> Vec<(String, String)> {
        let entries = self.files.iter().flat_map(|(_, parsed)| &parsed.entries);
        let mut found: BTreeMap<&String, &String> = BTreeMap::new();
        for entry in entries.filter(|entry| !self.environment.contains_key(&entry.name)) {
            found.entry(&entry.name).or_insert(&entry.value);
        }
        let found = found.into_iter().filter(|_| !self.plugin.is_some_and(EnvPlugin::answers));
        found.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Returns the values, with all complaints.
    pub(super) fn config(mut self) -> Config {
        let mut config = Config::from_origins(&|name| self.lookup(name));
        let environment = self.environment.keys().map(|name| (name, Origin::Environment));
        let files = self.files.iter().flat_map(|(path, parsed)| {
            let origin = |line| Origin::File { path: path.clone(), line };
            parsed.entries.iter().map(move |entry| (&entry.name, origin(entry.line)))
        });
        let unknown = environment.chain(files).filter(|(name, _)| {
            let foreign = FOREIGN.iter().any(|prefix| name.starts_with(prefix));
            // Files also have what only plugins read, such as FI_PROVIDER.
            let of_nccl = ["NCCL_", "OXCCL_"].iter().any(|prefix| name.starts_with(prefix));
            let is_meant = of_nccl || nearest(name).is_some();
            !foreign && is_meant && variables().all(|variable| variable.name != *name)
        });
        let unknown = unknown.map(|(name, origin)| match nearest(name) {
            Some(near) => format!("{name} ({origin}) is no variable; did you mean {near}?"),
            None => format!("{name} ({origin}) is no variable that this library knows"),
        });
        config.report.warnings.extend(unknown);
        for (name, why) in self.refused.drain(..) {
            let mut settings = config.report.settings.iter_mut();
            if let Some(setting) = settings.find(|setting| setting.variable.name == name) {
                setting.refused = Some(why);
            }
        }
        config.report.of_files = self.of_files();
        config.report.warnings.append(&mut self.warnings);
        config.report.warnings.append(&mut env::take_lines(true));
        config.report.unreadable.append(&mut self.unreadable);
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;
    use std::time::Duration;

    /// A temporary folder, which is removed when this value is dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("oxccl-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, text).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn environment(pairs: &[(&str, &str)]) -> impl Iterator<Item = (OsString, OsString)> {
        let owned = |(name, value): &(&str, &str)| ((*name).into(), (*value).into());
        pairs.iter().map(owned).collect::<Vec<(OsString, OsString)>>().into_iter()
    }

    #[test]
    fn the_environment_beats_the_users_file_and_that_the_systems() {
        let folder = Folder::new("order");
        let system =
            folder.write("system", "OXCCL_TIMEOUT=1\nOXCCL_INIT_TIMEOUT=2\nNCCL_HOSTID=system\n");
        folder.write(".nccl.conf", "OXCCL_TIMEOUT=3\nOXCCL_INIT_TIMEOUT=4\n");
        let named = folder.write("named", "OXCCL_TIMEOUT=5\nNCCL_DEBUG_FIEL=x\nrubbish\n");
        let config = |pairs: &[(&str, &str)]| {
            Sources::new(environment(pairs), false, Some(&folder.0), &system).config()
        };

        let at_home = config(&[("OXCCL_TIMEOUT", "9")]);
        let seconds = Duration::from_secs;
        assert_eq!((at_home.timeout, at_home.init_timeout), (seconds(9), seconds(4)));
        assert_eq!(at_home.hostid, "system");
        let of_files: Vec<_> = at_home.report.of_files.iter().map(|(n, v)| [&**n, &**v]).collect();
        assert_eq!(of_files, [["NCCL_HOSTID", "system"], ["OXCCL_INIT_TIMEOUT", "4"]]);
        assert!(at_home.report.warnings.is_empty(), "{:?}", at_home.report.warnings);

        let elsewhere = config(&[("NCCL_CONF_FILE", named.to_str().unwrap())]);
        assert_eq!((elsewhere.timeout, elsewhere.init_timeout), (seconds(5), seconds(2)));
        let origin = &elsewhere.setting("OXCCL_TIMEOUT").unwrap().1.origin;
        assert_eq!(origin.to_string(), format!("{}:1", named.display()));
        let named = named.display();
        let expected = [
            format!("NCCL_DEBUG_FIEL ({named}:2) is no variable; did you mean NCCL_DEBUG_FILE?"),
            format!("{named}:3: no NAME=VALUE"),
        ];
        assert_eq!(elsewhere.report.warnings, expected);

        let missing = config(&[("NCCL_CONF_FILE", "/nonexistent/conf")]);
        assert_eq!(missing.report.warnings, ["NCCL_CONF_FILE=/nonexistent/conf: no such file"]);
    }

    #[test]
    fn files_have_variables_of_plugins_and_what_looks_like_a_mistake_is_reported() {
        let folder = Folder::new("foreign");
        let text = "FI_PROVIDER=efa\nUCX_TLS=rc,cuda\nNCC_DEBUG=INFO\n3D=1\n";
        let system = folder.write("system", text);
        let config = Sources::new(environment(&[]), false, None, &system).config();
        let of_files: Vec<_> = config.report.of_files.iter().map(|(n, v)| [&**n, &**v]).collect();
        let expected = [["FI_PROVIDER", "efa"], ["NCC_DEBUG", "INFO"], ["UCX_TLS", "rc,cuda"]];
        assert_eq!(of_files, expected);
        let system = system.display();
        let expected = [
            format!("NCC_DEBUG ({system}:3) is no variable; did you mean NCCL_DEBUG?"),
            format!("{system}:4: no NAME=VALUE"),
        ];
        assert_eq!(config.report.warnings, expected);
    }

    #[test]
    fn unknown_names_are_reported_once_and_those_of_others_never() {
        let pairs = [
            ("NCCL_DEBG", "INFO"),
            ("OXCCL_WHATEVER_ELSE", "1"),
            ("NCCL_TESTS_SPLIT", "1"),
            ("NCCL_VERSION", "2.30.7-1"),
            ("NCCL_SOCKET_IFNAME", "lo"),
            ("TORCH_NCCL_BLOCKING_WAIT", "1"),
        ];
        let nowhere = Path::new("/nonexistent/conf");
        let mut pairs: Vec<_> = environment(&pairs).collect();
        for name in ["NCCL_HOSTID", "OXCCL_RENDEZVOUS", "OXCCL_NONE"] {
            pairs.push((name.into(), OsString::from_vec(vec![0xff])));
        }
        let report = Sources::new(pairs.into_iter(), false, None, nowhere).config().report;
        let expected = [
            "NCCL_DEBG (environment) is no variable; did you mean NCCL_DEBUG?",
            "OXCCL_WHATEVER_ELSE (environment) is no variable that this library knows",
            "NCCL_HOSTID is ignored: it is not UTF-8",
            "OXCCL_NONE is ignored: it is not UTF-8",
        ];
        assert_eq!(report.warnings, expected);
        let unreadable: Vec<String> = report.unreadable.iter().map(ToString::to_string).collect();
        let place =
            "OXCCL_RENDEZVOUS=\u{fffd} (environment) cannot be read; expected text in UTF-8";
        assert_eq!(unreadable, [place]);
        let refused = report.settings.iter().filter_map(|setting| setting.refused.as_deref());
        assert_eq!(refused.collect::<Vec<_>>(), [expected[2], place]);
    }

    #[test]
    fn paths_are_not_taken_where_the_caller_has_fewer_rights() {
        let folder = Folder::new("secure");
        let conf = folder.write("conf", "OXCCL_TIMEOUT=5\n");
        let pairs = [
            ("NCCL_CONF_FILE", conf.to_str().unwrap()),
            ("NCCL_DEBUG_FILE", "/tmp/x"),
            ("OXCCL_SECRET_FILE", "/tmp/x"),
            ("OXCCL_RENDEZVOUS", "/tmp"),
            ("NCCL_NET_PLUGIN", "/tmp/x.so"),
            ("NCCL_DEBUG", "INFO"),
        ];
        let nowhere = Path::new("/nonexistent/conf");
        let config = |secure| Sources::new(environment(&pairs), secure, None, nowhere).config();
        let five = Duration::from_secs(5);
        assert_eq!((config(false).timeout, config(false).debug_file.as_str()), (five, "/tmp/x"));
        let privileged = config(true);
        assert_eq!((privileged.timeout, privileged.debug_file.as_str()), (Duration::ZERO, ""));
        assert_eq!((privileged.secret_file.as_str(), privileged.rendezvous.as_str()), ("", ""));
        let given: Vec<String> = privileged.report.given().collect();
        assert_eq!(given, ["NCCL_DEBUG=INFO (environment)"]);
        assert_eq!(privileged.report.warnings.len(), 5);
        let refused = privileged.report.settings.iter().filter(|s| s.refused.is_some()).count();
        assert_eq!(refused, 5);
    }
}
