"""The doctor watches a training and says what is wrong, where and since when; a healthy run hears nothing."""
