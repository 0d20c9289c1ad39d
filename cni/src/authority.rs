//! Finds the certificates of a kubeconfig that may sign others. rustls takes any certificate that it is given for an
//! authority, and looks at no date and no constraint of it; Go's crypto/x509, and so client-go, does (`isValid` and
//! `CheckSignatureFrom`).

use std::time::Duration;

use ureq::tls::Certificate;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;
use x509_parser::time::ASN1Time;
use x509_parser::x509::X509Version;

/// Those of these certificates that may sign others at this time, which is counted from 1970. There is more than one
/// while an authority is replaced.
///
/// # Errors
/// The reason why none of them may.
pub fn usable(certificates: Vec<Certificate<'static>>, now: Duration) -> Result<Vec<Certificate<'static>>, String> {
    let mut reason = String::new();
    let mut usable = Vec::new();
    for certificate in certificates {
        match check(certificate.der(), now) {
            Ok(()) => usable.push(certificate),
            Err(why) => reason = why,
        }
    }
    if usable.is_empty() { Err(reason) } else { Ok(usable) }
}

fn check(der: &[u8], now: Duration) -> Result<(), String> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|_| "whose certificate cannot be read".to_owned())?;
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let validity = certificate.validity();
    if seconds > validity.not_after.timestamp() {
        return Err(format!("that has expired: it was valid until {}", shown(validity.not_after)));
    }
    if seconds < validity.not_before.timestamp() {
        return Err(format!("that is not valid yet: it will be from {} on", shown(validity.not_before)));
    }
    // Twice in one certificate is an error.
    let constraints = certificate.basic_constraints();
    let usage = certificate.key_usage();
    let (Ok(constraints), Ok(usage)) = (constraints, usage) else {
        return Err("whose certificate cannot be read".to_owned());
    };
    let is_authority = match constraints {
        Some(constraints) => constraints.value.ca,
        // Before there were any.
        None => certificate.version() != X509Version::V3,
    };
    if !is_authority || usage.is_some_and(|usage| !usage.value.key_cert_sign()) {
        return Err("that is no authority's: its certificate may not sign others (CA:TRUE and keyCertSign)".to_owned());
    }
    Ok(())
}

/// As the specification of Kubernetes' API writes times.
fn shown(time: ASN1Time) -> String {
    let time = time.to_datetime();
    let (date, clock) = (time.date(), time.time());
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        date.year(),
        u8::from(date.month()),
        date.day(),
        clock.hour(),
        clock.minute(),
        clock.second()
    )
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd};

    use super::*;

    fn made(change: impl FnOnce(&mut CertificateParams)) -> Certificate<'static> {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        Certificate::from_der(made.der()).to_owned()
    }

    fn now() -> Duration {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap()
    }

    #[test]
    fn an_authority_is_valid_now_and_may_sign() {
        let good = || made(|_| ());
        let expired = || made(|params| params.not_after = date_time_ymd(2024, 2, 3));
        for (bad, words) in [
            (expired(), "expired: it was valid until 2024-02-03T00:00:00Z"),
            (
                made(|params| params.not_before = date_time_ymd(2999, 1, 2)),
                "not valid yet: it will be from 2999-01-02T",
            ),
            (made(|params| params.is_ca = IsCa::ExplicitNoCa), "CA:TRUE"),
            (made(|params| params.is_ca = IsCa::NoCa), "CA:TRUE"),
            (made(|params| params.key_usages = vec![KeyUsagePurpose::CrlSign]), "keyCertSign"),
            (Certificate::from_der(b"no certificate").to_owned(), "cannot be read"),
        ] {
            let error = usable(vec![bad.clone()], now()).unwrap_err();
            assert!(error.contains(words), "{error}");
            // Beside one that is good, as while an authority is replaced.
            let found = usable(vec![bad, good()], now()).unwrap();
            assert_eq!(found.len(), 1);
        }
        usable(vec![made(|params| params.key_usages = vec![KeyUsagePurpose::KeyCertSign])], now()).unwrap();
        assert_eq!(usable(vec![good(), good()], now()).unwrap().len(), 2);
    }
}
