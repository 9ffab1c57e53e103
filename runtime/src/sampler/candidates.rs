//! The tokens still in the running, the truncations and the draw.
//!
//! Candidates stand in the order of their ids from the first stage to the draw, so that a draw depends on what is kept
//! and not on how it was found. A truncation finds a border by partial sort (Hoare's selection, weighted by mass where a
//! share of the probability is asked for) and keeps what is inside. At least one token always stays.
//!
//! Ranks: likelier first, the lower id first on a tie.

use std::cmp::Ordering;

use rand::RngCore;

use super::mass::mass;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) token: u32,
    /// Never NaN, never infinite.
    pub(super) logit: f32,
}

/// A candidate while a border is searched; smaller keys rank first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranked {
    pub(super) key: f32,
    pub(super) token: u32,
    mass: u64,
}

/// The key of a logit. Subtracting makes positive zero of both zeros, which compare as equal but do not order as equal.
fn key_of(logit: f32) -> f32 {
    0.0 - logit
}

impl Ranked {
    pub(super) fn by_logit(token: u32, logit: f32) -> Self {
        Self { key: key_of(logit), token, mass: 0 }
    }

    pub(super) fn order(&self, other: &Self) -> Ordering {
        self.key.total_cmp(&other.key).then(self.token.cmp(&other.token))
    }

    /// Whether a candidate with this key and token ranks up to and including the border.
    fn includes(&self, key: f32, token: u32) -> bool {
        key < self.key || (key == self.key && token <= self.token)
    }
}

/// Leaves the `k >= 1` highest of `logits` in `ranking`, in no order. NaN and negative infinity are passed over, so
/// there may be fewer; positive infinity counts as the largest number.
pub(super) fn select_highest(logits: &[f32], k: usize, ranking: &mut Vec<Ranked>) {
    // Room for some rounds of rejects between two selections; small, so that it stays in the cache.
    let room = k.saturating_mul(4).max(1024);
    let mut border = f32::NEG_INFINITY;
    ranking.clear();
    for (token, &logit) in (0..).zip(logits) {
        // Ids ascend, so a tie with the border ranks behind it and strictly greater is right.
        if logit > border {
            ranking.push(Ranked::by_logit(token, logit.min(f32::MAX)));
            if ranking.len() == room {
                let (_, last, _) = ranking.select_nth_unstable_by(k - 1, Ranked::order);
                border = -last.key;
                ranking.truncate(k);
            }
        }
    }
    if ranking.len() > k {
        ranking.select_nth_unstable_by(k - 1, Ranked::order);
        ranking.truncate(k);
    }
}

/// The last member of the shortest run of best ranks whose masses reach `need`; `ranking` is not empty and holds at
/// least `need`. Each round halves the rest, so the work is linear.
fn border_of_mass(mut ranking: &mut [Ranked], mut need: u64) -> Ranked {
    while ranking.len() > 1 {
        let half = ranking.len() / 2;
        ranking.select_nth_unstable_by(half, Ranked::order);
        let (better, worse) = ranking.split_at_mut(half);
        let held: u64 = better.iter().map(|r| r.mass).sum();
        if held >= need {
            ranking = better;
        } else {
            need -= held;
            ranking = worse;
        }
    }
    ranking[0]
}

/// The smallest whole mass that is at least the share `p` of `total`.
fn share(p: f32, total: u64) -> u64 {
    ((f64::from(p) * total as f64).ceil() as u64).clamp(1, total)
}

/// The candidates of one token and the scratch memory of the search.
#[derive(Clone, Debug, Default)]
pub(super) struct Candidates {
    /// In the order of their ids.
    kept: Vec<Candidate>,
    /// Masses of `kept`; valid after [`Candidates::weigh`].
    masses: Vec<u64>,
    total: u64,
    ranking: Vec<Ranked>,
}

impl Candidates {
    /// Takes the `top_k` likeliest tokens (0: all) of `logits` (`[vocab]`). False if no token is possible.
    #[must_use]
    pub(super) fn collect(&mut self, logits: &[f32], top_k: u32) -> bool {
        let possible = (0..)
            .zip(logits)
            .filter(|(_, logit)| **logit > f32::NEG_INFINITY)
            .map(|(token, logit)| Candidate { token, logit: logit.min(f32::MAX) });
        self.kept.clear();
        if top_k == 0 || top_k as usize >= logits.len() {
            self.kept.extend(possible);
        } else {
            select_highest(logits, top_k as usize, &mut self.ranking);
            if let Some(border) = self.ranking.iter().copied().max_by(Ranked::order) {
                self.kept.extend(possible.filter(|c| border.includes(key_of(c.logit), c.token)));
            }
        }
        !self.kept.is_empty()
    }

    fn highest(&self) -> f32 {
        self.kept.iter().fold(f32::MIN, |highest, c| highest.max(c.logit))
    }

    /// Computes the masses at a temperature above 0.
    pub(super) fn weigh(&mut self, temperature: f32) {
        let highest = self.highest();
        self.masses.clear();
        self.masses.extend(self.kept.iter().map(|c| mass((c.logit - highest) / temperature)));
        self.total = self.masses.iter().sum();
    }

    /// Keeps the tokens whose information is nearest to the expected one, up to the share `p` (locally typical
    /// sampling, arXiv:2202.00666).
    pub(super) fn typical_p(&mut self, p: f32) {
        if p >= 1.0 {
            return;
        }
        self.weigh(1.0);
        let total = self.total as f64;
        let log_total = (total / super::mass::ONE as f64).ln();
        let highest = self.highest();
        // Natural logarithm of a candidate's probability.
        let log_p = |c: &Candidate| f64::from(c.logit) - f64::from(highest) - log_total;
        let entropy: f64 = -self.kept.iter().zip(&self.masses).map(|(c, &m)| m as f64 / total * log_p(c)).sum::<f64>();
        let key = |c: &Candidate| (-log_p(c) - entropy).abs() as f32;
        self.ranking.clear();
        self.ranking.extend(self.kept.iter().zip(&self.masses).map(|(c, &mass)| Ranked {
            key: key(c),
            token: c.token,
            mass,
        }));
        let border = border_of_mass(&mut self.ranking, share(p, self.total));
        self.kept.retain(|c| border.includes(key(c), c.token));
    }

    /// Keeps the fewest likeliest tokens that hold the share `p` of the probability (nucleus sampling,
    /// arXiv:1904.09751); 0 keeps one.
    pub(super) fn top_p(&mut self, p: f32) {
        if p >= 1.0 {
            return;
        }
        self.weigh(1.0);
        let need = share(p, self.total);
        // All tokens below this mass together are less than what may be left out: the nucleus has none of them.
        let least = (self.total - need) / self.kept.len() as u64;
        self.ranking.clear();
        self.ranking.extend(
            self.kept.iter().zip(&self.masses).filter(|(_, mass)| **mass >= least).map(|(c, &mass)| Ranked {
                key: key_of(c.logit),
                token: c.token,
                mass,
            }),
        );
        let border = border_of_mass(&mut self.ranking, need);
        self.kept.retain(|c| border.includes(key_of(c.logit), c.token));
    }

    /// Keeps the tokens at least `p` times as likely as the likeliest (arXiv:2407.01082).
    pub(super) fn min_p(&mut self, p: f32) {
        if p > 0.0 {
            let least = self.highest() + p.ln();
            self.kept.retain(|c| c.logit >= least);
        }
    }

    /// Of the tokens with at least the probability `threshold`, removes all but the least likely ("exclude top
    /// choices", text-generation-webui pull request 6335).
    pub(super) fn xtc(&mut self, threshold: f32) {
        self.weigh(1.0);
        let least = share(threshold, self.total);
        let eligible = self.kept.iter().zip(&self.masses).filter(|(_, mass)| **mass >= least);
        let last = eligible.map(|(c, _)| Ranked::by_logit(c.token, c.logit)).max_by(Ranked::order);
        if let Some(last) = last {
            self.kept.retain(|c| c.token == last.token || !last.includes(key_of(c.logit), c.token));
        }
    }

    /// Draws a token in proportion to the masses.
    pub(super) fn draw(&self, rng: &mut impl RngCore) -> u32 {
        // Maps 64 random bits onto 0..total; no token's chance is off by more than 2^-64.
        let mut at = ((u128::from(rng.next_u64()) * u128::from(self.total)) >> 64) as u64;
        for (candidate, &mass) in self.kept.iter().zip(&self.masses) {
            if at < mass {
                return candidate.token;
            }
            at -= mass;
        }
        unreachable!("the point is below the sum of the masses, and the likeliest candidate has one")
    }

    /// What is kept with its probability, in the order of the ids.
    #[cfg(test)]
    pub(super) fn distribution(&self) -> Vec<(u32, f64)> {
        let share = |m: u64| m as f64 / self.total as f64;
        self.kept.iter().zip(&self.masses).map(|(c, &m)| (c.token, share(m))).collect()
    }

    #[cfg(test)]
    pub(super) fn capacities(&self) -> [usize; 3] {
        [self.kept.capacity(), self.masses.capacity(), self.ranking.capacity()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_of_either_sign_tie_and_the_lower_id_wins() {
        for zeros in [[-0.0f32, 0.0], [0.0, -0.0]] {
            let mut candidates = Candidates::default();
            assert!(candidates.collect(&zeros, 1));
            candidates.weigh(1.0);
            assert_eq!(candidates.distribution(), [(0, 1.0)], "{zeros:?}");
        }
    }
}
