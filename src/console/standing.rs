//! Where a request stands, and whether a person's approval counts now. Approvals count together when they name the same fee and the same
//! end.

use covault_core::schema::wire;

/// The word of a request's status: `pending`.
pub fn status(request: &wire::SigningRequest) -> String {
    let name = request.status().as_str_name();
    name.trim_start_matches("STATUS_").to_ascii_lowercase()
}

fn holds(given: &wire::GivenApproval, now_ms: u64) -> bool {
    given.valid_until_timestamp > now_ms
}

fn is_same(one: &wire::GivenApproval, other: &wire::GivenApproval) -> bool {
    one.most_fee == other.most_fee && one.valid_until_timestamp == other.valid_until_timestamp
}

/// How many hold that name the same as this one.
fn together(request: &wire::SigningRequest, with: &wire::GivenApproval) -> usize {
    request
        .approvals
        .iter()
        .filter(|it| is_same(it, with))
        .count()
}

/// The newest of those that lead: that hold at `now_ms`, and that most persons have given.
pub fn leading(request: &wire::SigningRequest, now_ms: u64) -> Option<&wire::GivenApproval> {
    let held = request.approvals.iter().filter(|it| holds(it, now_ms));
    held.max_by_key(|it| together(request, it))
}

/// Whether signers hold it: enough have approved, and it continues by itself. A signer that wants more lacks an approval.
pub fn is_held(request: &wire::SigningRequest) -> bool {
    !request.approval_wanted.is_empty() && request.remaining_approval_count == 0
}

/// How the approval of one person stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalStanding {
    /// None was given.
    None,
    /// It counts, and nothing else is to be done.
    Counts,
    /// One may be given again, for this reason.
    Again(&'static str),
}

impl ApprovalStanding {
    /// Of this person at `now_ms`, in milliseconds since the Unix epoch.
    pub fn of(request: &wire::SigningRequest, person: &str, now_ms: u64) -> Self {
        let mut given = request.approvals.iter();
        let Some(mine) = given.find(|it| it.person == person) else {
            return Self::None;
        };
        if !holds(mine, now_ms) {
            return Self::Again("Your approval has expired and no longer counts.");
        }
        if !request.approval_wanted.is_empty() && !is_held(request) {
            return Self::Again("You have approved it, but a signer wants more than that.");
        }
        let others = request.approvals.iter();
        let mut others = others.filter(|it| holds(it, now_ms) && !is_same(it, mine));
        // Of as many on both sides neither can know who will follow whom.
        let rival = others.find(|it| together(request, it) >= together(request, mine));
        match rival {
            None => Self::Counts,
            Some(rival) if rival.most_fee != mine.most_fee => Self::Again(
                "Your approval names another fee than that of others: they count together only when they name the same.",
            ),
            Some(_) => Self::Again(
                "Your approval ends at another time than that of others: approve again, and they count together.",
            ),
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_800_000_000_000;
    const LATER_MS: u64 = NOW_MS + 1000;

    fn request(given: &[(&str, &str, u64)]) -> wire::SigningRequest {
        let given = given
            .iter()
            .map(|(person, most_fee, until_ms)| wire::GivenApproval {
                person: (*person).into(),
                most_fee: (*most_fee).into(),
                valid_until_timestamp: *until_ms,
                ..Default::default()
            });
        wire::SigningRequest {
            approvals: given.collect(),
            ..Default::default()
        }
    }

    fn is_again(request: &wire::SigningRequest, person: &str) -> bool {
        matches!(
            ApprovalStanding::of(request, person, NOW_MS),
            ApprovalStanding::Again(_)
        )
    }

    #[test]
    fn approval__should_be_offered_again_when_the_one_given_does_not_count() {
        let one = request(&[("a", "1", LATER_MS)]);
        assert_eq!(
            ApprovalStanding::of(&one, "a", NOW_MS),
            ApprovalStanding::Counts
        );
        assert_eq!(
            ApprovalStanding::of(&one, "b", NOW_MS),
            ApprovalStanding::None
        );
        // Over: the last millisecond counts no more, as for signers.
        assert!(is_again(&request(&[("a", "1", NOW_MS)]), "a"));
        // Other fees, and other ends: as many on each side.
        for other in [("b", "2", LATER_MS), ("b", "1", LATER_MS + 1)] {
            let split = request(&[("a", "1", LATER_MS), other]);
            assert!(is_again(&split, "a") && is_again(&split, "b"), "{other:?}");
        }
        // What is over splits nobody, and the fewer follow the more.
        let over = request(&[("a", "1", LATER_MS), ("b", "2", NOW_MS)]);
        assert_eq!(
            ApprovalStanding::of(&over, "a", NOW_MS),
            ApprovalStanding::Counts
        );
        let two = request(&[
            ("a", "1", LATER_MS),
            ("b", "1", LATER_MS),
            ("c", "2", LATER_MS),
        ]);
        assert_eq!(
            ApprovalStanding::of(&two, "a", NOW_MS),
            ApprovalStanding::Counts
        );
        assert!(is_again(&two, "c"));
        assert_eq!(leading(&two, NOW_MS).unwrap().most_fee, "1");
        // A signer wants more.
        let mut wanted = one;
        wanted.approval_wanted = "the fee is too low".into();
        wanted.remaining_approval_count = 1;
        assert!(is_again(&wanted, "a") && !is_held(&wanted));
    }

    #[test]
    fn held_payment__should_be_shown_as_held_and_not_be_asked_for_again() {
        let mut held = request(&[("a", "1", LATER_MS)]);
        held.approval_wanted = "held by signer-1 until 2026-11-26 04:00 UTC".into();
        assert!(is_held(&held));
        assert_eq!(
            ApprovalStanding::of(&held, "a", NOW_MS),
            ApprovalStanding::Counts
        );
    }
}
