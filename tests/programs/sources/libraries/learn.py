"""learn.py ROUNDS: scikit-learn on data of its own: forests with joblib's threads, boosting, clusters."""

import sys

from sklearn.cluster import KMeans
from sklearn.datasets import make_classification
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.model_selection import cross_val_score

for r in range(int(sys.argv[1])):
    x, y = make_classification(n_samples=800, n_features=20, random_state=r)
    forest = RandomForestClassifier(60, n_jobs=2, random_state=r)
    boosted = GradientBoostingClassifier(n_estimators=30, random_state=r).fit(x, y)
    clusters = KMeans(5, n_init=2, random_state=r).fit(x)
    print(r, cross_val_score(forest, x, y, cv=3), boosted.score(x, y), round(clusters.inertia_, 6), flush=True)
