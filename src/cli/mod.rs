//! Flags → [`Install`]. The only place that knows clap.

mod quick;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory as _, Parser};

use crate::log::{Format, Level, Log};
use crate::operate::install::Install;
use crate::operate::uninstall::Uninstall;
use crate::rules::config::{Config, Invalid, OwnerId, Port, PortRange, Subnet};
use crate::rules::mode::{Choice, Mode};

/// What the command line asks for.
#[derive(Debug)]
pub enum Command {
    /// Install the rules.
    Install(Box<Install>, Log),
    /// Show the rules that would be installed.
    Simulate(Box<Install>),
    /// Compare what is installed with what would be.
    Verify(Box<Install>, Output),
    /// Take the rules out of every backend.
    Uninstall(Uninstall, Log),
    /// Show what the kernel and the namespace have.
    Detect(Option<PathBuf>, Output),
    /// Print this text (help or version) and be done.
    Print(String),
}

/// What output is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// People.
    Text,
    /// Machines.
    Json,
}

/// Bad input: one line that names the flag and the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (libnftnl ",
    env!("PROXY_INIT_LIBNFTNL_VERSION"),
    ", libmnl ",
    env!("PROXY_INIT_LIBMNL_VERSION"),
    ")"
);

const AFTER_HELP: &str = "\
Example:
  proxy-init --iptables-mode nft -p 4143 -o 4140 -u 2102 \\
      --inbound-ports-to-ignore 4190,4191,4567,4568 --outbound-ports-to-ignore 4567,4568

Lists are separated by commas and may be repeated. Exit codes: 0 done, 1 failed, 2 bad input.";

/// Redirects the TCP of a network namespace, such as a pod's, through its sidecar proxy.
///
/// Run it once, as root or with CAP_NET_ADMIN, in the namespace or with --netns. It takes linkerd-init's flags and
/// leaves linkerd-init's rules, for IPv4 and IPv6, in one transaction: all of them or none. Running it again replaces
/// its rules and leaves everybody else's alone.
#[derive(Debug, Default, PartialEq, Eq, Parser)]
#[command(name = "proxy-init", version = VERSION, after_help = AFTER_HELP, args_override_self = true)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Subcommand>,
    #[command(flatten)]
    rules: RuleFlags,
    #[command(flatten)]
    run: RunFlags,
}

/// What else there is to do than to install.
#[derive(Debug, PartialEq, Eq, clap::Subcommand)]
enum Subcommand {
    /// Compare the kernel's rules with what the same flags would install: exit code 0 in place, 3 not or not quite
    Verify {
        #[command(flatten)]
        rules: Box<RuleFlags>,
        #[command(flatten)]
        run: Box<RunFlags>,
        #[command(flatten)]
        output: OutputFlags,
    },
    /// Take our rules out, of every backend that has them; strangers' stay
    Uninstall {
        #[command(flatten)]
        run: Box<RunFlags>,
    },
    /// Show what this kernel supports, what the namespace holds, and what auto mode would choose
    Detect {
        /// Network namespace to look at, e.g. /var/run/netns/pod [default: the current one]
        #[arg(long, value_name = "PATH")]
        netns: Option<OsString>,
        #[command(flatten)]
        output: OutputFlags,
    },
    /// Print the man page, e.g. proxy-init man | man -l -
    Man,
    /// Print completions for a shell, e.g. proxy-init completions bash > /etc/bash_completion.d/proxy-init
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// How a report looks.
#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Output")]
struct OutputFlags {
    /// text for people or json for machines [default: text]
    #[arg(long, value_name = "FORMAT")]
    output: Option<String>,
}

/// Which rules.
#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Rules")]
struct RuleFlags {
    /// Port of the proxy that takes inbound connections (required)
    #[arg(short = 'p', long, value_name = "PORT", allow_hyphen_values = true)]
    incoming_proxy_port: Option<String>,

    /// Port of the proxy that takes outbound connections (required)
    #[arg(short = 'o', long, value_name = "PORT", allow_hyphen_values = true)]
    outgoing_proxy_port: Option<String>,

    /// The proxy's user id: its own connections are not redirected [default: -1, no rule]
    #[arg(short = 'u', long, value_name = "UID", allow_hyphen_values = true)]
    proxy_uid: Option<String>,

    /// The proxy's group id, likewise [default: -1, no rule]
    #[arg(short = 'g', long, value_name = "GID", allow_hyphen_values = true)]
    proxy_gid: Option<String>,

    /// Redirect only these inbound ports, e.g. 80,443 [default: all]
    #[arg(short = 'r', long, value_name = "PORTS", allow_hyphen_values = true)]
    ports_to_redirect: Vec<String>,

    /// Inbound ports that bypass the proxy, e.g. 4190,8000-8100
    #[arg(long, value_name = "PORTS", allow_hyphen_values = true)]
    inbound_ports_to_ignore: Vec<String>,

    /// Outbound ports that bypass the proxy, e.g. 443,3306
    #[arg(long, value_name = "PORTS", allow_hyphen_values = true)]
    outbound_ports_to_ignore: Vec<String>,

    /// Connections from these subnets bypass the proxy, e.g. 10.0.0.0/8,fd00::/8
    #[arg(
        long,
        visible_alias = "subnets-to-ignore",
        value_name = "SUBNETS",
        allow_hyphen_values = true
    )]
    inbound_subnets_to_ignore: Vec<String>,

    /// Connections to these subnets bypass the proxy, e.g. 169.254.169.254/32
    #[arg(long, value_name = "SUBNETS", allow_hyphen_values = true)]
    outbound_subnets_to_ignore: Vec<String>,

    /// Rules for IPv6 beside those for IPv4; --ipv6=false for IPv4 alone [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    ipv6: Option<String>,
}

/// How and where.
#[derive(Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Run")]
struct RunFlags {
    /// How the rules reach the kernel: nft (nf_tables over netlink, as iptables-nft would), native (nftables' own way, no
    /// xtables), legacy (iptables-legacy-restore), plain (what iptables is here) or auto (what fits the kernel)
    /// [default: legacy, or IPTABLES_MODE from the environment]
    #[arg(long, value_name = "MODE")]
    iptables_mode: Option<String>,

    /// Take out rules of ours that another mode left, which would redirect twice
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    replace_other_backend: Option<String>,

    /// Print the rules as iptables-restore input, change nothing, need no privilege
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    simulate: Option<String>,

    /// Network namespace to work in, e.g. /var/run/netns/pod [default: the current one]
    #[arg(long, value_name = "PATH")]
    netns: Option<OsString>,

    /// Wait for the xtables lock (legacy mode; nft mode needs no lock)
    #[arg(
        short = 'w',
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    use_wait_flag: Option<String>,

    /// Set the namespace's nf_conntrack_tcp_timeout_close_wait [default: 0, leave it]
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    timeout_close_wait_secs: Option<String>,

    /// Format of the log lines on stdout: plain (logfmt) or json [default: plain]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,

    /// Log lines that matter at least so much: error, warning, info or debug [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,

    /// linkerd-init's older way to choose the mode: iptables-nft, iptables-legacy or iptables
    #[arg(long, value_name = "NAME")]
    firewall_bin_path: Option<String>,

    /// Goes with --firewall-bin-path, and says nothing more
    #[arg(long, value_name = "NAME")]
    firewall_save_bin_path: Option<String>,
}

/// Reads the command line, the program's name first, and the environment's `IPTABLES_MODE`.
///
/// # Errors
/// Anything that linkerd-init, iptables or the kernel would refuse, or that can't be meant.
pub fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    iptables_mode: Option<OsString>,
) -> Result<Command, UsageError> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let cli =
        match quick::parse(arguments.get(1..).unwrap_or_default()).map_or_else(|| Cli::try_parse_from(arguments), Ok) {
            Ok(cli) => cli,
            Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
                return Ok(Command::Print(error.to_string()));
            }
            Err(error) => return Err(one_line(&error)),
        };
    let environment = iptables_mode.map(|mode| mode.to_string_lossy().into_owned());
    match cli.command {
        None => {
            let log = log(&cli.run)?;
            let simulate = boolean("--simulate", cli.run.simulate.as_deref(), false)?;
            let install = Box::new(install(cli.rules, cli.run, environment)?);
            Ok(if simulate {
                Command::Simulate(install)
            } else {
                Command::Install(install, log)
            })
        }
        Some(Subcommand::Verify { rules, run, output }) => {
            let output = output_format(output.output.as_deref())?;
            Ok(Command::Verify(Box::new(install(*rules, *run, environment)?), output))
        }
        Some(Subcommand::Uninstall { run }) => {
            let log = log(&run)?;
            Ok(Command::Uninstall(uninstall(*run)?, log))
        }
        Some(Subcommand::Man) => {
            let mut page = Vec::new();
            // Writing to a Vec can't fail.
            let _ = clap_mangen::Man::new(Cli::command()).render(&mut page);
            Ok(Command::Print(String::from_utf8_lossy(&page).into_owned()))
        }
        Some(Subcommand::Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "proxy-init", &mut script);
            Ok(Command::Print(String::from_utf8_lossy(&script).into_owned()))
        }
        Some(Subcommand::Detect { netns: path, output }) => {
            Ok(Command::Detect(netns(path), output_format(output.output.as_deref())?))
        }
    }
}

fn log(run: &RunFlags) -> Result<Log, UsageError> {
    Ok(Log::new(
        log_format(run.log_format.as_deref())?,
        log_level(run.log_level.as_deref())?,
    ))
}

fn uninstall(run: RunFlags) -> Result<Uninstall, UsageError> {
    Ok(Uninstall {
        folder: folder(&run),
        wait: boolean("--use-wait-flag", run.use_wait_flag.as_deref(), false)?,
        netns: netns(run.netns),
    })
}

fn folder(run: &RunFlags) -> Option<PathBuf> {
    Path::new(run.firewall_bin_path.as_deref()?)
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .map(Path::to_owned)
}

fn netns(flag: Option<OsString>) -> Option<PathBuf> {
    flag.map(PathBuf::from).filter(|path| !path.as_os_str().is_empty())
}

/// clap's error without the usage behind it.
fn one_line(error: &clap::Error) -> UsageError {
    let argument = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) => argument.as_str(),
        _ => "",
    };
    let text = match error.kind() {
        ErrorKind::UnknownArgument => {
            let similar = match error.get(ContextKind::SuggestedArg) {
                Some(ContextValue::String(similar)) => format!(", did you mean {similar}?"),
                _ => String::new(),
            };
            format!("unknown flag or argument {argument}{similar}")
        }
        ErrorKind::InvalidValue => format!("{argument}: a value is missing"),
        _ => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            first.strip_prefix("error: ").unwrap_or(first).to_owned()
        }
    };
    UsageError(format!("{text} (see proxy-init --help)"))
}

fn install(rules: RuleFlags, run: RunFlags, environment: Option<String>) -> Result<Install, UsageError> {
    let config = Config {
        proxy_uid: owner("--proxy-uid", rules.proxy_uid)?,
        proxy_gid: owner("--proxy-gid", rules.proxy_gid)?,
        redirected_ports: list("--ports-to-redirect", &rules.ports_to_redirect)?,
        ignored_inbound_ports: list::<PortRange>("--inbound-ports-to-ignore", &rules.inbound_ports_to_ignore)?,
        ignored_outbound_ports: list::<PortRange>("--outbound-ports-to-ignore", &rules.outbound_ports_to_ignore)?,
        ignored_inbound_subnets: list::<Subnet>("--inbound-subnets-to-ignore", &rules.inbound_subnets_to_ignore)?,
        ignored_outbound_subnets: list::<Subnet>("--outbound-subnets-to-ignore", &rules.outbound_subnets_to_ignore)?,
        ipv6: boolean("--ipv6", rules.ipv6.as_deref(), true)?,
        ..Config::new(
            proxy_port("--incoming-proxy-port", rules.incoming_proxy_port)?,
            proxy_port("--outgoing-proxy-port", rules.outgoing_proxy_port)?,
        )
    };
    Ok(Install {
        config,
        choice: choice(&run, environment)?,
        folder: folder(&run),
        wait: boolean("--use-wait-flag", run.use_wait_flag.as_deref(), false)?,
        replace_other_backend: boolean("--replace-other-backend", run.replace_other_backend.as_deref(), false)?,
        netns: run.netns.map(PathBuf::from).filter(|path| !path.as_os_str().is_empty()),
        close_wait_timeout: seconds("--timeout-close-wait-secs", run.timeout_close_wait_secs.as_deref())?,
    })
}

fn invalid(flag: &str, reason: impl fmt::Display) -> UsageError {
    UsageError(format!("{flag}: {reason}"))
}

fn proxy_port(flag: &str, value: Option<String>) -> Result<Port, UsageError> {
    let Some(value) = value else {
        return Err(UsageError(format!(
            "{flag} must be a valid TCP port number: it is required, e.g. {flag} 4143"
        )));
    };
    let port = integer(&value).and_then(|number| Port::new(u16::try_from(number).ok()?));
    port.ok_or_else(|| {
        UsageError(format!(
            "{flag} must be a valid TCP port number (1-65535), not \"{value}\""
        ))
    })
}

fn owner(flag: &str, value: Option<String>) -> Result<Option<OwnerId>, UsageError> {
    let Some(value) = value else {
        return Ok(None);
    };
    match integer(&value) {
        Some(-1 | 0) => Ok(None),
        number => number
            .and_then(|number| OwnerId::new(u32::try_from(number).ok()?))
            .map(Some)
            .ok_or_else(|| invalid(flag, Invalid::OwnerId(value))),
    }
}

fn seconds(flag: &str, value: Option<&str>) -> Result<Option<u32>, UsageError> {
    let value = value.unwrap_or("0");
    match integer(value).map(i32::try_from) {
        Some(Ok(0)) => Ok(None),
        Some(Ok(seconds @ 1..)) => Ok(Some(seconds.unsigned_abs())),
        _ => Err(invalid(
            flag,
            format_args!("\"{value}\" is not a number of seconds (1-2147483647, or 0 to leave it as it is)"),
        )),
    }
}

/// A list's items, from every time that the flag was given; spaces around items and empty ones don't count.
fn list<T: FromStr<Err = Invalid>>(flag: &str, values: &[String]) -> Result<Vec<T>, UsageError> {
    values
        .iter()
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(|item| item.parse().map_err(|error| invalid(flag, error)))
        .collect()
}

/// A whole number as Go's flags read it: decimal, or with 0x, 0o (or just 0) or 0b in front (strconv.ParseInt with
/// base 0).
fn integer(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (digits, radix) = if let Some(digits) = lower.strip_prefix("0x") {
        (digits, 16)
    } else if let Some(digits) = lower.strip_prefix("0b") {
        (digits, 2)
    } else if let Some(digits) = lower.strip_prefix("0o") {
        (digits, 8)
    } else if let Some(digits) = lower.strip_prefix('0').filter(|digits| !digits.is_empty()) {
        (digits, 8)
    } else {
        (lower.as_str(), 10)
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    Some(sign * i64::from_str_radix(digits, radix).ok()?)
}

/// A boolean as Go's flags read it (strconv.ParseBool).
fn boolean(flag: &str, value: Option<&str>, default: bool) -> Result<bool, UsageError> {
    let Some(value) = value else {
        return Ok(default);
    };
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(invalid(flag, format_args!("\"{value}\" is not true or false"))),
    }
}

/// The mode: the flag says it, or else the environment (as kube-proxy's images have it), or else the name of the
/// iptables binary, or else it is linkerd-init's default.
fn choice(run: &RunFlags, environment: Option<String>) -> Result<Choice, UsageError> {
    let flag = run.iptables_mode.as_deref().unwrap_or_default();
    match (flag, environment.as_deref().unwrap_or_default()) {
        ("", "") => choice_of_binary(run.firewall_bin_path.as_deref().unwrap_or_default()),
        ("", mode) => choice_of_name("IPTABLES_MODE in the environment", mode),
        (mode, _) => choice_of_name("--iptables-mode", mode),
    }
}

fn choice_of_name(source: &str, mode: &str) -> Result<Choice, UsageError> {
    match mode {
        "nft" => Ok(Choice::Mode(Mode::Nft)),
        "legacy" => Ok(Choice::Mode(Mode::Legacy)),
        "native" => Ok(Choice::Mode(Mode::Native)),
        "plain" => Ok(Choice::Plain),
        "auto" => Ok(Choice::Auto),
        _ => Err(UsageError(format!(
            "{source} valid values are only \"legacy\", \"nft\", \"native\", \"auto\", and \"plain\", not \"{mode}\""
        ))),
    }
}

/// The mode that an iptables binary's name stands for, wherever it is.
fn choice_of_binary(path: &str) -> Result<Choice, UsageError> {
    match path.rsplit('/').next().unwrap_or_default() {
        "iptables-nft" => Ok(Choice::Mode(Mode::Nft)),
        "" => Ok(Choice::Default),
        "iptables-legacy" => Ok(Choice::Mode(Mode::Legacy)),
        "iptables" => Ok(Choice::Plain),
        _ => Err(UsageError(format!(
            "--firewall-bin-path: \"{path}\" stands for no mode: name iptables-nft, iptables-legacy or iptables, or \
             use --iptables-mode"
        ))),
    }
}

fn output_format(value: Option<&str>) -> Result<Output, UsageError> {
    match value.unwrap_or("text") {
        "text" => Ok(Output::Text),
        "json" => Ok(Output::Json),
        other => Err(invalid(
            "--output",
            format_args!("\"{other}\" is not a format: use text or json"),
        )),
    }
}

fn log_format(value: Option<&str>) -> Result<Format, UsageError> {
    let value = value.unwrap_or("plain");
    match value {
        "plain" => Ok(Format::Plain),
        "json" => Ok(Format::Json),
        _ => Err(invalid(
            "--log-format",
            format_args!("\"{value}\" is not a format: use plain or json"),
        )),
    }
}

/// logrus' levels; those that we have no lines for mean the nearest one.
fn log_level(value: Option<&str>) -> Result<Level, UsageError> {
    let value = value.unwrap_or("info");
    match value.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => Ok(Level::Error),
        "warn" | "warning" => Ok(Level::Warning),
        "info" => Ok(Level::Info),
        "debug" | "trace" => Ok(Level::Debug),
        _ => Err(invalid(
            "--log-level",
            format_args!("not a valid logrus Level: \"{value}\" (use error, warning, info or debug)"),
        )),
    }
}
